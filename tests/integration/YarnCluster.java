import java.io.BufferedReader;
import java.io.File;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.client.api.YarnClient;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/**
 * HDFS with one DataNode and YARN with two NodeManagers in one process. Writes their settings to the directory that is
 * its argument, kills each application that a line of its input names, and ends with its input.
 */
public class YarnCluster {
    static final Map<String, String> SETTINGS = Map.ofEntries(
        // The jar lacks capacity-scheduler.xml.
        Map.entry("yarn.scheduler.capacity.root.queues", "default"),
        Map.entry("yarn.scheduler.capacity.root.default.capacity", "100"),
        Map.entry("yarn.scheduler.capacity.root.default.state", "RUNNING"),
        Map.entry("yarn.scheduler.capacity.maximum-am-resource-percent", "1.0"),
        Map.entry("yarn.scheduler.minimum-allocation-mb", "256"),
        Map.entry("yarn.nodemanager.resource.memory-mb", "4096"),
        Map.entry("yarn.nodemanager.resource.cpu-vcores", "8"),
        Map.entry("yarn.resourcemanager.am.max-attempts", "2"),
        // What a busy machine has: containers are not killed for their size, nor is a nearly full disk refused.
        Map.entry("yarn.nodemanager.pmem-check-enabled", "false"),
        Map.entry("yarn.nodemanager.vmem-check-enabled", "false"),
        Map.entry("yarn.nodemanager.disk-health-checker.enable", "false"),
        Map.entry("yarn.nodemanager.delete.debug-delay-sec", "600"),
        Map.entry("yarn.nodemanager.env-whitelist", "JAVA_HOME,HADOOP_CONF_DIR,PATH"),
        Map.entry("dfs.replication", "1"),
        Map.entry("dfs.namenode.fs-limits.min-block-size", "1024"),
        Map.entry("dfs.permissions.enabled", "false"));

    public static void main(String[] arguments) throws Exception {
        File work = new File(arguments[0]);
        System.setProperty("test.build.data", new File(work, "data").getPath());
        System.setProperty("hadoop.log.dir", new File(work, "logs").getPath());
        Configuration settings = new Configuration();
        SETTINGS.forEach(settings::set);
        settings.set("hadoop.tmp.dir", new File(work, "tmp").getPath());
        MiniDFSCluster hdfs = new MiniDFSCluster.Builder(settings, new File(work, "hdfs")).numDataNodes(1).build();
        hdfs.waitActive();
        MiniYARNCluster yarn = new MiniYARNCluster("yarn", 1, 2, 1, 1);
        yarn.init(settings);
        yarn.start();
        yarn.waitForNodeManagersToConnect(60_000);
        Configuration found = new Configuration(yarn.getConfig());
        found.set("fs.defaultFS", hdfs.getURI().toString());
        found.unset("net.topology.node.switch.mapping.impl"); // a class of the mini cluster, which Spark lacks
        // One file with everything is read under each of these names.
        for (String name : new String[] {"core-site.xml", "hdfs-site.xml", "yarn-site.xml"})
            try (OutputStream file = new FileOutputStream(new File(work, name))) {
                found.writeXml(file);
            }
        System.out.println("ready " + yarn.getTestWorkDir());
        YarnClient client = YarnClient.createYarnClient();
        client.init(found);
        client.start();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String id = lines.readLine(); id != null; id = lines.readLine()) {
            client.killApplication(ApplicationId.fromString(id)); // yarn application -kill
            System.out.println("killed " + id);
        }
        Runtime.getRuntime().halt(0);
    }
}
