import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.requests.AbstractRequest;

/**
 * Kafka's own message classes, for many messages in one start.
 *
 * <p>It prints the error codes: code, name, retriable. If it is given a file, it reads lines of class, version, bytes
 * (hex) and optionally JSON, separated by tabs, and prints after an empty line a line for each: the bytes that the class
 * writes after it has read ours, and the bytes that it writes for the JSON, which its converter reads field by field. A
 * line of "refuse", version, bytes of a request, API key and error code gives the response with which Kafka refuses it.
 */
public class Messages {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false,
                StandardCharsets.UTF_8);
        for (Errors error : Errors.values())
            out.println(error.code() + "\t" + error.name() + "\t" + (error.exception() instanceof RetriableException));
        if (arguments.length > 0) {
            out.println();
            try (BufferedReader lines = Files.newBufferedReader(Path.of(arguments[0]))) {
                for (String line; (line = lines.readLine()) != null; ) out.println(check(line.split("\t")));
            }
        }
        out.flush();
    }

    static String check(String[] columns) throws Exception {
        short version = Short.parseShort(columns[1]);
        if (columns[0].equals("refuse")) return attempt(() -> refusal(columns, version), version);
        String answer = attempt(() -> {
            Message message = (Message) Class.forName(columns[0]).getDeclaredConstructor().newInstance();
            ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(columns[2]));
            message.read(new ByteBufferAccessor(bytes), version);
            if (bytes.hasRemaining()) throw new IllegalStateException(bytes.remaining() + " bytes are left");
            return message;
        }, version);
        if (columns.length < 4) return answer;
        return answer + "\t" + attempt(() -> {
            Method read = Class.forName(columns[0] + "JsonConverter").getMethod("read", JsonNode.class, short.class);
            return (Message) read.invoke(null, JSON.readTree(columns[3]), version);
        }, version);
    }

    static Message refusal(String[] columns, short version) throws Exception {
        ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(columns[2]));
        ApiKeys api = ApiKeys.forId(Integer.parseInt(columns[3]));
        AbstractRequest request = AbstractRequest.parseRequest(api, version, new ByteBufferAccessor(bytes)).request;
        return (Message) request.getErrorResponse(0, Errors.forCode(Short.parseShort(columns[4])).exception()).data();
    }

    interface Source {
        Message message() throws Exception;
    }

    static String attempt(Source source, short version) {
        try {
            ByteBuffer written = MessageUtil.toByteBufferAccessor(source.message(), version).buffer();
            return HexFormat.of().formatHex(written.array(), written.arrayOffset(), written.arrayOffset() + written.limit());
        } catch (Throwable problem) {
            Throwable cause = problem instanceof InvocationTargetException ? problem.getCause() : problem;
            return cause.toString().replaceAll("\\s+", " ");
        }
    }
}
