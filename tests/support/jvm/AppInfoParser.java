package org.apache.kafka.common.utils;

/** A class of Kafka 4.3, which 4.4 has elsewhere: the file connectors of Connect 4.3.1 take their version from it. */
public class AppInfoParser {
    public static String getVersion() {
        return org.apache.kafka.common.utils.internals.AppInfoParser.getVersion();
    }
}
