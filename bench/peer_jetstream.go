//go:build jetstream

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func init() { logs = append(logs, jetStream) }

// subject is what the stream of a peer JetStream listens to, and its name.
const subject = "bench"

// jetStream is a NATS server in this process with a stream in files and one
// replica. Its store has no exported constructor, so it is used as programs use
// it: through a client, here over a connection inside the process. A record has
// been written when its publication is acknowledged, and with SyncAlways synced.
var jetStream = peer{
	name: "JetStream", module: "github.com/nats-io/nats-server/v2",
	lacks: "calls that append a batch at once, several writers in one sync, partitions of a stream; each record is a message through a client of the embedded server, whose store no program can call",
	log: func(dir string, synced bool) (*logConn, error) {
		s, err := server.NewServer(&server.Options{DontListen: true, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true, SyncAlways: synced})
		if err != nil {
			return nil, err
		}
		s.Start()
		stop := func() {
			s.Shutdown()
			s.WaitForShutdown()
		}
		if !s.ReadyForConnections(10 * time.Second) {
			stop()
			return nil, errors.New("JetStream: the server is not ready after 10 seconds")
		}
		nc, err := nats.Connect("", nats.InProcessServer(s))
		if err != nil {
			stop()
			return nil, err
		}
		c, err := openStream(nc)
		if err != nil {
			nc.Close()
			stop()
			return nil, err
		}
		return &logConn{append: c.append, read: c.read, rewind: c.rewind, trim: c.trim, close: func() error {
			c.unread()
			nc.Close()
			stop()
			return nil
		}}, nil
	},
}

// A streamConn is a client of a stream.
type streamConn struct {
	ctx    context.Context
	js     jetstream.JetStream
	stream jetstream.Stream
	acks   []jetstream.PubAckFuture
	from   jetstream.MessagesContext // what is read next; nil before the first read
	first  uint64                    // sequence of the first record that is kept
	at     uint64                    // of the next that is read
}

func openStream(nc *nats.Conn) (*streamConn, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	c := &streamConn{ctx: context.Background(), js: js, first: 1, at: 1}
	c.stream, err = js.CreateStream(c.ctx, jetstream.StreamConfig{Name: subject, Subjects: []string{subject}, Storage: jetstream.FileStorage})
	return c, err
}

func (c *streamConn) append(records [][]byte) error {
	if len(records) == 1 {
		_, err := c.js.Publish(c.ctx, subject, records[0])
		return err
	}
	c.acks = c.acks[:0]
	for _, r := range records {
		ack, err := c.js.PublishAsync(subject, r)
		if err != nil {
			return err
		}
		c.acks = append(c.acks, ack)
	}
	for _, ack := range c.acks {
		select {
		case <-ack.Ok():
		case err := <-ack.Err():
			return err
		}
	}
	return nil
}

func (c *streamConn) read(k *order, n int) error {
	if c.from == nil {
		consumer, err := c.stream.OrderedConsumer(c.ctx, jetstream.OrderedConsumerConfig{
			DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: c.at,
		})
		if err != nil {
			return err
		}
		if c.from, err = consumer.Messages(); err != nil {
			return err
		}
	}
	for ; n > 0; n-- {
		m, err := c.from.Next()
		if err != nil {
			return fmt.Errorf("JetStream: %d records are still to come: %w", n, err)
		}
		if err := see(k, m.Data()); err != nil {
			return err
		}
		c.at++
	}
	return nil
}

// unread ends the consumer.
func (c *streamConn) unread() {
	if c.from != nil {
		c.from.Stop()
		c.from = nil
	}
}

func (c *streamConn) rewind() error {
	c.unread()
	c.at = c.first
	return nil
}

func (c *streamConn) trim() error {
	c.first = c.at
	return c.stream.Purge(c.ctx, jetstream.WithPurgeSequence(c.at))
}
