package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// maxEvent bounds one event, before memory is taken for it.
const maxEvent = 64 << 10

// service is the topic, the way in over HTTP and the way out to files.
type service struct {
	topic *queue.Topic[json.RawMessage]
	files *queue.Group[json.RawMessage]
	dir   string // of the hourly files
}

// openService opens the topic in dir. What an earlier process acknowledged is
// still there.
func openService(dir string) (*service, error) {
	topic, err := queue.Open(queue.Config[json.RawMessage]{
		Name:       "events",
		Dir:        dir,
		Codec:      penstock.JSON[json.RawMessage](), // stores it compact, on one line
		Durability: penstock.Synced,                  // the default for topics on disk, spelled out
	})
	if err != nil {
		return nil, err
	}
	files, err := topic.Group("files", queue.GroupConfig{BatchMax: 1000})
	if err != nil {
		return nil, errors.Join(err, topic.Close())
	}
	out := filepath.Join(dir, "hours")
	if err := os.MkdirAll(out, 0o700); err != nil {
		return nil, errors.Join(err, topic.Close())
	}
	return &service{topic: topic, files: files, dir: out}, nil
}

// Close closes the topic. The caller has stopped serving and writing.
func (s *service) Close() error { return s.topic.Close() }

// ServeHTTP takes one event and answers 202 when it is on the disk. Many
// requests at a time share one flush.
func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost || r.URL.Path != "/events" {
		http.Error(w, "POST one JSON value to /events", http.StatusNotFound)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxEvent))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	if !json.Valid(body) {
		http.Error(w, "not a JSON value", http.StatusBadRequest)
		return
	}
	receipt, err := s.topic.ProduceAsync(r.Context(), body)
	var ack queue.Ack
	if err == nil {
		ack, err = receipt.Wait(r.Context())
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	fmt.Fprintf(w, "{\"partition\":%d,\"offset\":%v,\"level\":%q}\n", ack.Parts[0].Partition, ack.Parts[0].First, ack.Level)
}

// write moves batches from the topic to the files until ctx ends. A batch that
// fails, on a full disk for example, is tried again; its events stay in the
// topic.
func (s *service) write(ctx context.Context) error { return s.files.Run(ctx, s.handle) }

// handle appends a batch to the file of each event's hour and flushes the
// files before it returns, since its return settles the batch.
func (s *service) handle(_ context.Context, b penstock.Batch[json.RawMessage]) error {
	text := map[string][]byte{} // by file name
	for i, v := range b.All() {
		name := b.Time(i).UTC().Format("2006-01-02T15") + ".ndjson"
		text[name] = fmt.Appendf(text[name], "{\"partition\":%d,\"offset\":%v,\"event\":%s}\n", b.Partition(), b.Offset(i), v)
	}
	for name, lines := range text {
		if err := appendFile(filepath.Join(s.dir, name), lines); err != nil {
			return err
		}
	}
	return nil
}

// appendFile appends to a file and flushes it.
func appendFile(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
