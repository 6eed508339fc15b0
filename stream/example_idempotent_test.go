package stream_test

// What the guide shows in docs/guide/idempotent.md: handlers whose effects are
// there once, whatever is delivered again. The database of the examples keeps
// its rows in maps; a transaction of it does all or nothing, as one of SQL does.

import (
	"context"
	"errors"
	"fmt"
	"log"
	"maps"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/stream"
)

type rows struct {
	cents map[string]int64                // by account
	done  map[string]bool                 // by subscription and event ID
	last  map[string]penstock.ProducerTag // by subscription, stream and producer
	place map[string]penstock.Token       // by subscription and stream
}

type database struct{ rows rows }

func newDatabase() *database {
	return &database{rows{map[string]int64{}, map[string]bool{}, map[string]penstock.ProducerTag{}, map[string]penstock.Token{}}}
}

// Transact runs f and keeps what it wrote when it returns nil.
func (d *database) Transact(f func(tx *rows) error) error {
	tx := rows{maps.Clone(d.rows.cents), maps.Clone(d.rows.done), maps.Clone(d.rows.last), maps.Clone(d.rows.place)}
	err := f(&tx)
	if err == nil {
		d.rows = tx
	}
	return err
}

type Payment struct {
	Account string
	Cents   int64
}

// byID keeps a row per event.
func byID(db *database) penstock.Handler[Payment] {
	return func(_ context.Context, b penstock.Batch[Payment]) error {
		return db.Transact(func(tx *rows) error {
			for i, p := range b.All() {
				id := "billing/" + b.ID(i)
				if tx.done[id] {
					continue // this delivery is a repetition
				}
				tx.done[id] = true
				tx.cents[p.Account] += p.Cents
			}
			return nil
		})
	}
}

// byTag keeps a row per producer and stream.
func byTag(db *database) penstock.Handler[Payment] {
	return func(_ context.Context, b penstock.Batch[Payment]) error {
		return db.Transact(func(tx *rows) error {
			for i, p := range b.All() {
				tag := b.Meta(i).Producer
				row := fmt.Sprint("billing/", b.Stream(), "/", tag.Producer())
				if tag.Sequence() <= tx.last[row].Sequence() {
					continue
				}
				tx.last[row] = tag
				tx.cents[p.Account] += p.Cents
			}
			return nil
		})
	}
}

// byToken keeps a row per stream.
func byToken(db *database) penstock.Handler[Payment] {
	return func(_ context.Context, b penstock.Batch[Payment]) error {
		return db.Transact(func(tx *rows) error {
			row := fmt.Sprint("billing/", b.Stream())
			for i, p := range b.All() {
				if at, ok := tx.place[row]; ok && b.Token(i).Compare(at) <= 0 {
					continue
				}
				tx.place[row] = b.Token(i)
				tx.cents[p.Account] += p.Cents
			}
			return nil
		})
	}
}

// Three payments of 100 are delivered twice, since the first answer of each
// handler is lost behind its transaction, and are booked once.
func Example_idempotent() {
	for _, handler := range []func(*database) penstock.Handler[Payment]{byID, byTag, byToken} {
		db := newDatabase()
		h, calls := handler(db), 0
		ctx, cancel := context.WithCancel(context.Background())
		topic, err := stream.OpenTopic(queue.Config[stream.Container]{Name: "bank"})
		if err != nil {
			log.Fatal(err)
		}
		p, err := stream.Open(stream.Config{Name: "bank", Factory: topic})
		if err != nil {
			log.Fatal(err)
		}
		payments := stream.Of[Payment](p, "payments", "ada")
		_, err = payments.Subscribe(ctx, "billing", func(ctx context.Context, b penstock.Batch[Payment]) error {
			if err := h(ctx, b); err != nil {
				return err
			}
			if calls++; calls == 1 {
				return errors.New("the connection broke behind the commit")
			}
			cancel()
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
		var events []penstock.Event[Payment]
		for n := range uint64(3) {
			tag, err := penstock.NewProducerTag(7, n+1)
			if err != nil {
				log.Fatal(err)
			}
			events = append(events, penstock.Event[Payment]{
				Meta:  penstock.Meta{ID: fmt.Sprint("payment-", n), Producer: tag},
				Value: Payment{Account: "ada", Cents: 100},
			})
		}
		if err := payments.PublishEvents(ctx, nil, events...); err != nil {
			log.Fatal(err)
		}
		if err := errors.Join(p.Run(ctx), p.Close(), topic.Close()); err != nil {
			log.Fatal(err)
		}
		fmt.Println(calls, "calls,", db.rows.cents["ada"], "cents")
	}
	// Output:
	// 2 calls, 300 cents
	// 2 calls, 300 cents
	// 2 calls, 300 cents
}
