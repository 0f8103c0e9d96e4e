import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.RecordChangeEvent;
import io.debezium.engine.format.ChangeEventFormat;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.connect.source.SourceRecord;

/** Debezium's embedded engine, drained and counted: PORT SLOT PUBLICATION TABLE CHANGES → seconds, first to last record. */
public class DebeziumCount {
    private static long seen, first, last;

    public static void main(String[] args) throws Exception {
        long expected = Long.parseLong(args[4]);
        Properties settings = new Properties();
        String[] pairs = {
            "name", "bench", "connector.class", "io.debezium.connector.postgresql.PostgresConnector",
            "offset.storage", "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
            "offset.flush.interval.ms", "10000", "database.hostname", "127.0.0.1", "database.port", args[0],
            "database.user", "postgres", "database.password", "none", "database.dbname", "postgres",
            "topic.prefix", "bench", "plugin.name", "pgoutput", "slot.name", args[1], "publication.name", args[2],
            "publication.autocreate.mode", "disabled", "table.include.list", "public." + args[3],
            "snapshot.mode", "no_data", "tombstones.on.delete", "false",
            "max.batch.size", "8192", "max.queue.size", "32768", "poll.interval.ms", "10"};
        for (int at = 0; at < pairs.length; at += 2) settings.put(pairs[at], pairs[at + 1]);
        CountDownLatch done = new CountDownLatch(1);
        DebeziumEngine<?> engine = DebeziumEngine.create(ChangeEventFormat.of(Connect.class)).using(settings)
            .notifying((List<RecordChangeEvent<SourceRecord>> records,
                        DebeziumEngine.RecordCommitter<RecordChangeEvent<SourceRecord>> committer) -> {
                for (RecordChangeEvent<SourceRecord> event : records) {
                    if (event.record().value() != null && event.record().topic().endsWith(args[3])) seen++;
                    committer.markProcessed(event);
                }
                committer.markBatchFinished();
                last = System.nanoTime();
                if (first == 0 && seen > 0) first = last;
                if (seen >= expected) done.countDown();
            }).build();
        ExecutorService thread = Executors.newSingleThreadExecutor();
        thread.submit(engine);
        boolean complete = done.await(300, TimeUnit.SECONDS);
        System.out.printf("%d %.3f%n", seen, (last - first) / 1e9);
        System.out.flush();
        Runtime.getRuntime().halt(complete ? 0 : 1);
    }
}
