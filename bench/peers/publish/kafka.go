package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const mostBuffered = 1 << 16

// kafkaPublisher is one producer: it batches what its callers hand it, as Kafka's clients do.
type kafkaPublisher struct {
	client  *kgo.Client
	topic   string
	headers []kgo.RecordHeader
}

func newKafka(chosen options) (publisher, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(chosen.servers...),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(chosen.linger),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.MaxBufferedRecords(mostBuffered),
		kgo.RecordDeliveryTimeout(ackLimit),
	)
	if err != nil {
		return nil, err
	}
	made := &kafkaPublisher{client: client, topic: chosen.topic}
	for _, each := range headers {
		made.headers = append(made.headers, kgo.RecordHeader{Key: each[0], Value: []byte(each[1])})
	}
	return made, nil
}

// create repeats until the controllers have a leader and enough brokers.
func (p *kafkaPublisher) create(ctx context.Context, chosen options) error {
	least := "2"
	settings := map[string]*string{"min.insync.replicas": &least}
	admin := kadm.NewClient(p.client)
	for {
		_, err := admin.CreateTopic(
			ctx, int32(chosen.queues), int16(chosen.replicas), settings, chosen.topic)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("topic %s: %w", chosen.topic, err)
		case <-time.After(createPause):
		}
	}
}

func (p *kafkaPublisher) publish(ctx context.Context, bodies [][]byte) error {
	records := make([]*kgo.Record, len(bodies))
	for number, body := range bodies {
		records[number] = &kgo.Record{Topic: p.topic, Value: body, Headers: p.headers}
	}
	return p.client.ProduceSync(ctx, records...).FirstErr()
}

func (p *kafkaPublisher) close() { p.client.Close() }
