// Command http-202 is a web service that answers 202 only when an event
// survives a power loss, and writes the events to one file per hour in its own
// time.
//
//	POST /events     one JSON value; 202 {"partition":0,"offset":7,"level":"synced"}
//
// An event that was answered with 202 is in the hourly files, at least once:
// after a crash the last batches are written again, with the same partition
// and offset, by which a reader can drop the repetition.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8202", "address to listen on")
	dir := flag.String("dir", "data", "folder of the topic and the hourly files")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *addr, *dir); err != nil {
		log.Fatal(err)
	}
}

// run serves until ctx ends. Then it stops in the order in which events flow:
// no new requests, requests in progress answered, batches in progress written.
func run(ctx context.Context, addr, dir string) error {
	s, err := openService(dir)
	if err != nil {
		return err
	}
	server := &http.Server{Addr: addr, Handler: s, ReadTimeout: 10 * time.Second, ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 16 << 10}
	written := make(chan error, 1)
	// Writes batches to files until ctx ends and the batch in hand is written;
	// run waits for it at the end.
	go func() { written <- s.write(ctx) }()
	served := make(chan error, 1)
	// Serves until Shutdown; its result is read below.
	go func() { served <- server.ListenAndServe() }()
	fmt.Println("listening on", addr)
	select {
	case <-ctx.Done():
	case err := <-served:
		return errors.Join(err, s.Close())
	}
	deadline, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err = server.Shutdown(deadline)
	<-served // http.ErrServerClosed
	return errors.Join(err, <-written, s.Close())
}
