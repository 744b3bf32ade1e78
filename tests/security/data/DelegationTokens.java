// Kafka's own client makes, describes, renews, uses and ends a delegation token; a word for each step that went well.

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.CreateDelegationTokenOptions;
import org.apache.kafka.clients.admin.ExpireDelegationTokenOptions;
import org.apache.kafka.clients.admin.RenewDelegationTokenOptions;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.DelegationTokenDisabledException;
import org.apache.kafka.common.errors.SaslAuthenticationException;
import org.apache.kafka.common.errors.UnsupportedByAuthenticationException;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.token.delegation.DelegationToken;

public class DelegationTokens {
    static Properties login(String servers, String user, String password, boolean token) {
        Properties found = new Properties();
        found.put("bootstrap.servers", servers);
        found.put("security.protocol", "SASL_PLAINTEXT");
        found.put("sasl.mechanism", "SCRAM-SHA-256");
        found.put("sasl.jaas.config", "org.apache.kafka.common.security.scram.ScramLoginModule required username=\"" + user
            + "\" password=\"" + password + "\"" + (token ? " tokenauth=\"true\"" : "") + ";");
        found.put("default.api.timeout.ms", "20000");
        found.put("request.timeout.ms", "10000");
        found.put("max.block.ms", "20000");
        found.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        found.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        return found;
    }

    public static void main(String[] args) throws Exception {
        String servers = args[0];
        try (Admin admin = Admin.create(login(servers, args[1], args[2], false))) {
            List<KafkaPrincipal> renewers = List.of(new KafkaPrincipal("User", "bob"));
            DelegationToken token = admin.createDelegationToken(
                new CreateDelegationTokenOptions().renewers(renewers).maxLifetimeMs(3600000)).delegationToken().get();
            System.out.println("created");
            List<DelegationToken> seen = admin.describeDelegationToken().delegationTokens().get();
            if (!seen.contains(token)) throw new AssertionError(seen);
            System.out.println("described");
            long until = admin.renewDelegationToken(token.hmac(), new RenewDelegationTokenOptions().renewTimePeriodMs(600000))
                .expiryTimestamp().get();
            if (until <= System.currentTimeMillis()) throw new AssertionError(until);
            System.out.println("renewed");
            Properties worker = login(servers, token.tokenInfo().tokenId(), token.hmacAsBase64String(), true);
            try (KafkaProducer<String, String> producer = new KafkaProducer<>(worker)) {
                producer.send(new ProducerRecord<>("delegated", "hello")).get();
                System.out.println("published");
            }
            try (Admin other = Admin.create(worker)) {
                other.createDelegationToken().delegationToken().get();
                throw new AssertionError("a token made another one");
            } catch (ExecutionException error) {
                if (!(error.getCause() instanceof UnsupportedByAuthenticationException)) throw error;
                System.out.println("refused");
            }
            admin.expireDelegationToken(token.hmac(), new ExpireDelegationTokenOptions().expiryTimePeriodMs(-1))
                .expiryTimestamp().get();
            System.out.println("expired");
            try (Admin other = Admin.create(worker)) {
                other.describeCluster().clusterId().get();
                throw new AssertionError("the token goes on");
            } catch (ExecutionException error) {
                if (!(error.getCause() instanceof SaslAuthenticationException)) throw error;
                System.out.println("shut-out");
            }
        }
    }
}
