import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.cdc.connectors.base.options.StartupOptions;
import org.apache.flink.cdc.connectors.postgres.source.PostgresSourceBuilder.PostgresIncrementalSource;
import org.apache.flink.cdc.debezium.table.DebeziumChangelogMode;
import org.apache.flink.cdc.debezium.table.RowDataDebeziumDeserializeSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.CheckpointType;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.RowType;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.Table;
import org.apache.iceberg.flink.FlinkSchemaUtil;
import org.apache.iceberg.flink.TableLoader;
import org.apache.iceberg.flink.sink.FlinkSink;
import org.apache.iceberg.util.SnapshotUtil;

/**
 * Flink CDC out of a PostgreSQL slot into an Iceberg table, on a cluster of Flink's inside this JVM:
 * PORT SLOT PUBLICATION TABLE LOCATION CHECKPOINTS.
 *
 * <p>Each line of the input is a number of changes that wait behind the slot. A job starts at the slot's position, and
 * the answer is a line with the seconds from its first change to the commit that has the last one. The cluster stays
 * between jobs, so only the first of them has a cold JVM.
 */
public class FlinkCdc {
    private static final int CHECKPOINT_SECONDS = 5, TIMEOUT_SECONDS = 300, WRITERS = 2;
    private static final AtomicLong seen = new AtomicLong(), first = new AtomicLong();

    private final String port, slot, publication, table;
    private final TableLoader loader;
    private final Configuration settings = new Configuration();

    private FlinkCdc(String[] args) {
        port = args[0];
        slot = args[1];
        publication = args[2];
        table = args[3];
        loader = TableLoader.fromHadoopTable(args[4]);
        loader.open();
        settings.setString("execution.checkpointing.interval", CHECKPOINT_SECONDS + " s");
        settings.setString("execution.checkpointing.min-pause", CHECKPOINT_SECONDS + " s");
        settings.setString("execution.checkpointing.storage", "filesystem");
        settings.setString("execution.checkpointing.dir", Path.of(args[5]).toUri().toString());
        settings.setString("restart-strategy.type", "none");
        settings.setString("pipeline.object-reuse", "true");
        settings.setString("rest.bind-address", "127.0.0.1");
        settings.setString("rest.bind-port", "0");
        settings.setString("taskmanager.memory.managed.size", "64m");
    }

    public static void main(String[] args) {
        try {
            FlinkCdc peer = new FlinkCdc(args);
            MiniCluster cluster = new MiniCluster(new MiniClusterConfiguration.Builder()
                .setConfiguration(peer.settings).setNumTaskManagers(1).setNumSlotsPerTaskManager(WRITERS).build());
            cluster.start();
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                System.out.printf("%.3f%n", peer.drain(cluster, Long.parseLong(line)));
            }
            Runtime.getRuntime().halt(0);
        } catch (Throwable error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1); // threads of the cluster would keep the JVM
        }
    }

    private double drain(MiniCluster cluster, long changes) throws Exception {
        seen.set(0);
        Table target = loader.loadTable();
        long before = target.currentSnapshot().snapshotId();
        JobGraph job = job();
        cluster.submitJob(job).get();
        long deadline = System.nanoTime() + TIMEOUT_SECONDS * 1_000_000_000L;
        boolean asked = false;
        while (applied(target, before) < changes) {
            if (System.nanoTime() > deadline || cluster.getJobStatus(job.getJobID()).get().isTerminalState()) {
                cluster.requestJobResult(job.getJobID()).get().toJobExecutionResult(FlinkCdc.class.getClassLoader());
                throw new IllegalStateException("only " + applied(target, before) + " changes are in the table");
            }
            if (!asked && seen.get() >= changes) {
                asked = true; // the last change need not wait for the next checkpoint in turn
                cluster.triggerCheckpoint(job.getJobID(), CheckpointType.CONFIGURED);
            }
            Thread.sleep(10);
            target.refresh();
        }
        double seconds = (System.nanoTime() - first.get()) / 1e9;
        cluster.cancelJob(job.getJobID()).get();
        cluster.requestJobResult(job.getJobID()).get();
        return seconds;
    }

    /** An upsert writes one delete for each change: of the key, or of the row's position if this checkpoint wrote it. */
    private static long applied(Table target, long before) {
        long found = 0;
        for (Snapshot one : SnapshotUtil.ancestorsBetween(target.currentSnapshot().snapshotId(), before, target::snapshot)) {
            Map<String, String> summary = one.summary();
            found += Long.parseLong(summary.getOrDefault("added-equality-deletes", "0"))
                + Long.parseLong(summary.getOrDefault("added-position-deletes", "0"));
        }
        return found;
    }

    private JobGraph job() {
        RowType row = FlinkSchemaUtil.convert(loader.loadTable().schema());
        InternalTypeInfo<RowData> type = InternalTypeInfo.of(row);
        Properties debezium = new Properties();
        debezium.setProperty("publication.name", publication);
        debezium.setProperty("publication.autocreate.mode", "disabled");
        debezium.setProperty("max.batch.size", "8192");
        debezium.setProperty("max.queue.size", "32768");
        debezium.setProperty("poll.interval.ms", "10");
        StreamExecutionEnvironment flow = StreamExecutionEnvironment.getExecutionEnvironment(settings);
        flow.setParallelism(1);
        DataStream<RowData> changes = flow.fromSource(PostgresIncrementalSource.<RowData>builder()
            .hostname("127.0.0.1").port(Integer.parseInt(port)).database("postgres")
            .username("postgres").password("none").schemaList("public").tableList("public." + table)
            .decodingPluginName("pgoutput").slotName(slot).debeziumProperties(debezium)
            .startupOptions(StartupOptions.committed()).heartbeatInterval(Duration.ofSeconds(30))
            .deserializer(RowDataDebeziumDeserializeSchema.newBuilder().setPhysicalRowType(row)
                .setResultTypeInfo(type).setChangelogMode(DebeziumChangelogMode.UPSERT).build())
            .build(), WatermarkStrategy.noWatermarks(), "postgres").map(FlinkCdc::counted).returns(type);
        FlinkSink.forRowData(changes).tableLoader(loader).equalityFieldColumns(List.of("id")).upsert(true)
            .writeParallelism(WRITERS).append();
        return flow.getStreamGraph().getJobGraph();
    }

    private static RowData counted(RowData row) {
        if (seen.getAndIncrement() == 0) first.set(System.nanoTime());
        return row;
    }
}
