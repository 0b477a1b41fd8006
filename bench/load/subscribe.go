package main

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	simpleConsumer = 3
	golang         = 4
)

// subscribe opens the telemetry stream of a simple consumer, as official clients do before their
// first receive: RocketMQ's proxy refuses receives of a client whose settings it does not know. The
// stream stays open until the context ends.
func (c *client) subscribe(ctx context.Context, topic, group string) error {
	stream, err := c.connection().NewStream(
		metadata.NewOutgoingContext(ctx, c.metadata),
		&grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, service+"Telemetry")
	if err != nil {
		return err
	}
	request := encodeSettings(topic, group)
	if err := stream.SendMsg(&request); err != nil {
		return err
	}
	for {
		var answer []byte
		if err := stream.RecvMsg(&answer); err != nil {
			return fmt.Errorf("telemetry: %w", err)
		}
		if hasSettings(answer) {
			break
		}
	}
	go func() {
		for {
			var ignored []byte
			if stream.RecvMsg(&ignored) != nil {
				return
			}
		}
	}()
	return nil
}

func encodeSettings(topic, group string) []byte {
	filter := appendString(appendVarint(nil, 1, tagFilter), 2, "*")
	entry := appendBytes(appendBytes(nil, 1, resource(topic)), 2, filter)
	subscription := appendBytes(appendBytes(nil, 1, resource(group)), 2, entry)
	subscription = appendBytes(subscription, 5, duration(poll))
	agent := appendString(appendVarint(nil, 1, golang), 2, clientVersion)
	settings := appendVarint(nil, 1, simpleConsumer)
	settings = appendBytes(settings, 6, subscription)
	settings = appendBytes(settings, 7, agent)
	return appendBytes(nil, 2, settings)
}

func hasSettings(command []byte) (found bool) {
	fields(command, func(field protowire.Number, _ uint64, _ []byte) {
		found = found || field == 2
	})
	return found
}
