// Command debug-page shows a topic with eight groups, one of which is a hundred
// times slower than the others, on the debug page of package queue.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

const (
	perSecond = 2000                   // orders
	fast      = 100 * time.Microsecond // per order of a group
	slow      = 100 * fast
)

func main() {
	addr := flag.String("addr", "127.0.0.1:7070", "where the page is served")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, *addr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run serves the page until ctx ends.
func run(ctx context.Context, out io.Writer, addr string) error {
	orders, err := queue.Open(queue.Config[string]{Name: "orders", Partitions: 4, Capacity: 20_000})
	if err != nil {
		return err
	}
	defer orders.Close()
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/debug/penstock/", queue.DebugHandler()) // this line is all that a service needs
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	fmt.Fprintf(out, "http://%s/debug/penstock/\n", listener.Addr())

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var work sync.WaitGroup
	start := func(f func() error) {
		work.Go(func() { // one per group, the producer and the server; ends with ctx, waited for below
			if err := f(); err != nil && ctx.Err() == nil {
				cancel(err)
			}
		})
	}
	for _, name := range []string{"billing", "emails", "stock", "search", "audit", "fraud", "reports", "loyalty"} {
		group, err := orders.Group(name, queue.GroupConfig{Consumers: 2, BatchMax: 50, Drain: time.Second})
		if err != nil {
			return err
		}
		start(func() error { return group.Run(ctx, handler(name)) })
	}
	start(func() error { return produce(ctx, orders) })
	start(func() error { return server.Serve(listener) })
	<-ctx.Done()
	err = server.Close() // the page has no state to save
	work.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// handler takes as long for each order as its group does.
func handler(group string) penstock.Handler[string] {
	each := fast
	if group == "emails" {
		each = slow
	}
	return func(ctx context.Context, b penstock.Batch[string]) error {
		select {
		case <-time.After(time.Duration(b.Len()) * each):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// produce makes orders at a steady pace, a batch every 10 ms, and waits while
// the topic is full.
func produce(ctx context.Context, orders *queue.Topic[string]) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	batch := make([]string, perSecond/100)
	for n := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for i := range batch {
			n++
			batch[i] = fmt.Sprint("order ", n)
		}
		if err := orders.Produce(ctx, batch...); err != nil {
			return err
		}
	}
}
