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

/** Debezium's embedded engine, drained and counted: TABLE CHANGES NAME=VALUE… → seconds, first to last record. */
public class DebeziumCount {
    private static long seen, first, last;

    public static void main(String[] args) throws Exception {
        long expected = Long.parseLong(args[1]);
        Properties settings = new Properties();
        String[] pairs = {
            "name", "bench", "offset.storage", "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
            "offset.flush.interval.ms", "10000", "database.hostname", "127.0.0.1", "topic.prefix", "bench",
            "tombstones.on.delete", "false",
            "max.batch.size", "8192", "max.queue.size", "32768", "poll.interval.ms", "10"};
        for (int at = 0; at < pairs.length; at += 2) settings.put(pairs[at], pairs[at + 1]);
        for (int at = 2; at < args.length; at++) {
            String[] pair = args[at].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        CountDownLatch done = new CountDownLatch(1);
        DebeziumEngine<?> engine = DebeziumEngine.create(ChangeEventFormat.of(Connect.class)).using(settings)
            .using((success, message, error) -> {
                System.err.println(message + (error == null ? "" : ": " + error));
                for (Throwable cause = error; cause != null; cause = cause.getCause()) System.err.println(cause);
                done.countDown();
            })
            .notifying((List<RecordChangeEvent<SourceRecord>> records,
                        DebeziumEngine.RecordCommitter<RecordChangeEvent<SourceRecord>> committer) -> {
                for (RecordChangeEvent<SourceRecord> event : records) {
                    if (event.record().value() != null && event.record().topic().endsWith(args[0])) seen++;
                    committer.markProcessed(event);
                }
                committer.markBatchFinished();
                last = System.nanoTime();
                if (first == 0 && seen > 0) first = last;
                if (seen >= expected) done.countDown();
            }).build();
        ExecutorService thread = Executors.newSingleThreadExecutor();
        thread.submit(engine);
        boolean complete = done.await(300, TimeUnit.SECONDS) && seen >= expected;
        System.out.printf("%d %.3f%n", seen, (last - first) / 1e9);
        System.out.flush();
        Runtime.getRuntime().halt(complete ? 0 : 1);
    }
}
