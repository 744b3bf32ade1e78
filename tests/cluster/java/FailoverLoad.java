// Kafka's own Java client while nodes die: an idempotent producer, and a transactional one that writes to two partitions.
//
// Arguments: bootstrap servers, topic of the idempotent producer, topic of the transactions, transactional id.
// It works until a line comes on standard input. Standard output says what was acknowledged, a line each:
//   sent PARTITION OFFSET NUMBER      the idempotent producer was told so
//   committed NUMBER                  commitTransaction returned
//   aborted NUMBER                    abortTransaction returned
//   error TEXT                        the client gave up on something; the test fails
//   end NUMBER                        so many were sent by the idempotent producer

import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringSerializer;

public class FailoverLoad {
    static final int PARTITIONS = 3;
    static final AtomicBoolean stopped = new AtomicBoolean();

    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    static KafkaProducer<String, String> producer(String bootstrap, String transactionalId) {
        Properties terms = new Properties();
        terms.put("bootstrap.servers", bootstrap);
        terms.put("key.serializer", StringSerializer.class.getName());
        terms.put("value.serializer", StringSerializer.class.getName());
        terms.put("acks", "all");
        terms.put("enable.idempotence", "true");
        terms.put("linger.ms", "2");
        if (transactionalId != null) {
            terms.put("transactional.id", transactionalId);
        }
        return new KafkaProducer<>(terms);
    }

    static void writeOneByOne(String bootstrap, String topic) throws InterruptedException {
        long number = 0;
        try (KafkaProducer<String, String> producer = producer(bootstrap, null)) {
            while (!stopped.get()) {
                for (int i = 0; i < 30; i++) {
                    long sent = number++;
                    int partition = (int) (sent % PARTITIONS);
                    producer.send(new ProducerRecord<>(topic, partition, null, Long.toString(sent)), (told, error) -> {
                        if (error != null) {
                            say("error " + error);
                        } else {
                            say("sent " + told.partition() + " " + told.offset() + " " + sent);
                        }
                    });
                }
                Thread.sleep(10);
            }
        }
        say("end " + number);
    }

    static void transact(String bootstrap, String topic, String transactionalId) {
        try (KafkaProducer<String, String> producer = producer(bootstrap, transactionalId)) {
            producer.initTransactions();
            for (long number = 0; !stopped.get(); number++) {
                producer.beginTransaction();
                try {
                    for (int partition = 0; partition < 2; partition++) {
                        producer.send(new ProducerRecord<>(topic, partition, null, Long.toString(number)));
                    }
                    producer.commitTransaction();
                    say("committed " + number);
                } catch (ProducerFencedException fenced) {
                    throw fenced;
                } catch (KafkaException abortable) {
                    producer.abortTransaction();
                    say("aborted " + number);
                }
            }
        } catch (KafkaException error) {
            say("error " + error);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Thread transacting = new Thread(() -> transact(arguments[0], arguments[2], arguments[3]));
        Thread writing = new Thread(() -> {
            try {
                writeOneByOne(arguments[0], arguments[1]);
            } catch (InterruptedException | KafkaException error) {
                say("error " + error);
            }
        });
        transacting.start();
        writing.start();
        System.in.read();
        stopped.set(true);
        writing.join();
        transacting.join();
    }
}
