import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.api.BKException;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * BookKeeper's client for the tests: reads one command a line, answers each with one line.
 *
 * <pre>
 * create E QW QA DIGEST PASSWORD       ok LEDGER
 * add LEDGER FIRST COUNT SIZE          ok LAST_ENTRY      entries are "FIRST+i:" filled up with x
 * close LEDGER                         ok LAST_ENTRY
 * recover LEDGER DIGEST PASSWORD       ok LAST_ENTRY SHA256   opened with recovery and read
 * read LEDGER DIGEST PASSWORD          ok LAST_ENTRY SHA256   opened without recovery
 * batch LEDGER DIGEST PASSWORD         ok LAST_ENTRY SHA256   the same by batch reads
 * describe LEDGER                      ok STATE LAST_ENTRY FIRST=BOOKIE,BOOKIE ...
 * custom LEDGER KEY                    ok HEX                 a value of its custom metadata
 * delete LEDGER                        ok
 * list                                 ok LEDGER ...
 * </pre>
 *
 * A failure is answered with "failed" and the name of BookKeeper's error. The digest of what was
 * read is over the payloads, one after the other, each with a newline behind it.
 */
public final class Peer {
    private final org.apache.bookkeeper.client.BookKeeper client;
    private final Map<Long, WriteHandle> writers = new HashMap<>();

    private Peer(String metadataUri) throws Exception {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(metadataUri);
        conf.setUseV2WireProtocol(true);
        conf.setZkTimeout(10000);
        conf.setAddEntryTimeout(3);
        conf.setReadEntryTimeout(3);
        client = new org.apache.bookkeeper.client.BookKeeper(conf);
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        Peer peer = new Peer(arguments[0]);
        answers.println("ready");
        BufferedReader commands =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            answers.println(peer.answer(line.split(" ")));
        }
        System.exit(0);
    }

    private String answer(String[] command) {
        try {
            return ("ok " + act(command)).strip();
        } catch (Exception failure) {
            Throwable cause = failure;
            while (!(cause instanceof BKException) && cause.getCause() != null) {
                cause = cause.getCause();
            }
            failure.printStackTrace();
            return "failed " + cause.getClass().getSimpleName();
        }
    }

    private Object act(String[] c) throws Exception {
        switch (c[0]) {
            case "create":
                return create(number(c, 1), number(c, 2), number(c, 3), c[4], password(c, 5));
            case "add":
                return add(Long.parseLong(c[1]), number(c, 2), number(c, 3), number(c, 4));
            case "close":
                return close(Long.parseLong(c[1]));
            case "recover":
                return read(Long.parseLong(c[1]), c[2], password(c, 3), true, false);
            case "read":
                return read(Long.parseLong(c[1]), c[2], password(c, 3), false, false);
            case "batch":
                return read(Long.parseLong(c[1]), c[2], password(c, 3), false, true);
            case "describe":
                return describe(Long.parseLong(c[1]));
            case "custom":
                return HexFormat.of().formatHex(client.getLedgerMetadata(Long.parseLong(c[1])).get()
                        .getCustomMetadata().get(c[2]));
            case "delete":
                client.newDeleteLedgerOp().withLedgerId(Long.parseLong(c[1])).execute().get();
                return "";
            case "list":
                return list();
            default:
                throw new IllegalArgumentException(c[0]);
        }
    }

    private static int number(String[] words, int index) {
        return Integer.parseInt(words[index]);
    }

    private static byte[] password(String[] words, int index) {
        return (words.length > index ? words[index] : "").getBytes(StandardCharsets.UTF_8);
    }

    private long create(int ensemble, int write, int ack, String digest, byte[] password)
            throws Exception {
        WriteHandle writer = client.newCreateLedgerOp()
                .withEnsembleSize(ensemble).withWriteQuorumSize(write).withAckQuorumSize(ack)
                .withDigestType(DigestType.valueOf(digest)).withPassword(password)
                .withCustomMetadata(Map.of(
                        "program", "java".getBytes(StandardCharsets.UTF_8),
                        "bytes", new byte[] {0, (byte) 0xff}))
                .execute().get();
        writers.put(writer.getId(), writer);
        return writer.getId();
    }

    private long add(long ledger, int first, int count, int size) throws Exception {
        List<java.util.concurrent.CompletableFuture<Long>> pending = new ArrayList<>();
        for (int i = first; i < first + count; i++) {
            StringBuilder payload = new StringBuilder(i + ":");
            payload.append("x".repeat(Math.max(0, size - payload.length())));
            pending.add(writers.get(ledger)
                    .appendAsync(payload.toString().getBytes(StandardCharsets.UTF_8)));
        }
        long last = -1;
        for (var each : pending) {
            last = each.get(60, TimeUnit.SECONDS);
        }
        return last;
    }

    private long close(long ledger) throws Exception {
        WriteHandle writer = writers.remove(ledger);
        writer.close();
        return writer.getLedgerMetadata().getLastEntryId();
    }

    private String read(long ledger, String digest, byte[] password, boolean recover, boolean batch)
            throws Exception {
        try (ReadHandle reader = client.newOpenLedgerOp().withLedgerId(ledger)
                .withDigestType(DigestType.valueOf(digest)).withPassword(password)
                .withRecovery(recover).execute().get()) {
            MessageDigest sum = MessageDigest.getInstance("SHA-256");
            long last = reader.getLastAddConfirmed();
            for (long at = 0; at <= last;) {
                int wanted = (int) Math.min(100, last - at + 1);
                try (LedgerEntries entries = batch
                        ? reader.batchRead(at, wanted, 1 << 20) : reader.read(at, at + wanted - 1)) {
                    Iterator<LedgerEntry> found = entries.iterator();
                    while (found.hasNext()) {
                        sum.update(found.next().getEntryBytes());
                        sum.update((byte) '\n');
                        at++;
                    }
                }
            }
            return last + " " + HexFormat.of().formatHex(sum.digest());
        }
    }

    private String describe(long ledger) throws Exception {
        var metadata = client.getLedgerMetadata(ledger).get();
        StringBuilder shown = new StringBuilder();
        shown.append(metadata.getState()).append(' ').append(metadata.getLastEntryId());
        metadata.getAllEnsembles().forEach((first, members) -> {
            shown.append(' ').append(first).append('=');
            shown.append(String.join(",", members.stream().map(Object::toString).toList()));
        });
        return shown.toString();
    }

    private String list() throws Exception {
        List<String> ids = new ArrayList<>();
        for (long id : ((BookKeeper) client).newListLedgersOp().execute().get().toIterable()) {
            ids.add(Long.toString(id));
        }
        return String.join(" ", ids);
    }
}
