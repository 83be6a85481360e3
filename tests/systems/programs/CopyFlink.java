import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;

public class CopyFlink {
    public static void main(String[] args) throws Exception {
        TableEnvironment tables = TableEnvironment.create(EnvironmentSettings.inStreamingMode());
        tables.getConfig().set("execution.checkpointing.interval", "500 ms");
        tables.getConfig().set("execution.checkpointing.dir", "file://" + args[4]);
        tables.getConfig().set("parallelism.default", "2");
        tables.getConfig().set("restart-strategy.type", "none");
        String[][] both = {{"source", args[1]}, {"target", args[2]}};
        for (String[] names : both) {
            tables.executeSql("CREATE TABLE " + names[0] + " (k STRING, v STRING, PRIMARY KEY (k) NOT ENFORCED) WITH ("
                    + "'connector' = 'upsert-kafka', 'topic' = '" + names[1] + "', 'properties.group.id' = '" + args[3]
                    + "', 'properties.bootstrap.servers' = '" + args[0] + "', 'key.format' = 'raw', "
                    + "'value.format' = 'raw', 'value.fields-include' = 'EXCEPT_KEY')");
        }
        tables.executeSql("INSERT INTO target SELECT k, v FROM source").await();
    }
}
