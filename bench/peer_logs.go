package main

import (
	"context"
	"errors"
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftwal "github.com/hashicorp/raft-wal"
	"github.com/penstock/penstock"
	"github.com/penstock/penstock/segfile"
	"github.com/tidwall/wal"
)

// logs are the logs on disk that are compared. With the build tag jetstream an
// embedded JetStream is one of them; it takes longer to compile than all else
// here.
var logs = []peer{tidwallWAL, raftWAL}

// logged is the log below a topic on disk.
var logged = peer{
	name: "penstock", module: "github.com/penstock/penstock",
	log: func(dir string, synced bool) (*logConn, error) {
		level := penstock.Written
		if synced {
			level = penstock.Synced
		}
		l, err := segfile.Open(segfile.Config{Dir: dir, Topic: "bench", Durability: level, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return nil, err
		}
		p := l.Partition(0)
		reader, err := p.NewReader(0)
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		ctx := context.Background()
		return &logConn{
			append: func(records [][]byte) error {
				f := segfile.NewFrame(len(records))
				for _, r := range records {
					f.Add(r)
				}
				receipt, err := p.Append(ctx, f)
				if err == nil {
					_, err = receipt.Wait(ctx)
				}
				return err
			},
			read: func(k *order, n int) error {
				for n > 0 {
					rs, err := reader.Next(n)
					if err == nil && rs.N == 0 {
						err = io.ErrUnexpectedEOF
					}
					if err != nil {
						return err
					}
					for i := range rs.N {
						if err := see(k, rs.At(i)); err != nil {
							return err
						}
					}
					n -= rs.N
				}
				return nil
			},
			rewind: func() error { return reader.Seek(p.Earliest()) },
			trim:   func() error { return p.Trim(reader.Offset()) },
			close:  func() error { return errors.Join(reader.Close(), l.Close()) },
		}, nil
	},
}

var tidwallWAL = peer{
	name: "tidwall/wal", module: "github.com/tidwall/wal",
	lacks: "checksums, several writers in one sync, partitions, recovery of a torn tail; its reads are parts of a file that it holds in memory",
	log: func(dir string, synced bool) (*logConn, error) {
		l, err := wal.Open(dir, &wal.Options{NoSync: !synced})
		if err != nil {
			return nil, err
		}
		end, at, first := uint64(1), uint64(1), uint64(1) // behind the last record, the next to read, the first that is kept
		var b wal.Batch
		return &logConn{
			append: func(records [][]byte) error {
				if len(records) == 1 {
					end++
					return l.Write(end-1, records[0])
				}
				for _, r := range records {
					b.Write(end, r)
					end++
				}
				return l.WriteBatch(&b)
			},
			read: func(k *order, n int) error {
				for ; n > 0; n-- {
					r, err := l.Read(at)
					if err == nil {
						err = see(k, r)
					}
					if err != nil {
						return err
					}
					at++
				}
				return nil
			},
			rewind: func() error { at = first; return nil },
			trim: func() error { // the last one stays: it cannot be empty
				first = at - 1
				return l.TruncateFront(first)
			},
			close: l.Close,
		}, nil
	},
}

var raftWAL = peer{
	name: "hashicorp/raft-wal", module: "github.com/hashicorp/raft-wal",
	lacks: "appends that are not synced, several writers in one sync, partitions, positions of readers",
	log: func(dir string, synced bool) (*logConn, error) {
		if !synced {
			return nil, nil
		}
		l, err := raftwal.Open(dir, raftwal.WithLogger(hclog.NewNullLogger()))
		if err != nil {
			return nil, err
		}
		end, at, first := uint64(1), uint64(1), uint64(1)
		var entries []raft.Log
		var batch []*raft.Log
		return &logConn{
			append: func(records [][]byte) error {
				for len(batch) < len(records) {
					entries = append(entries, raft.Log{})
					batch = batch[:0]
					for i := range entries {
						batch = append(batch, &entries[i])
					}
				}
				for i, r := range records {
					*batch[i] = raft.Log{Index: end, Data: r}
					end++
				}
				return l.StoreLogs(batch[:len(records)])
			},
			read: func(k *order, n int) error {
				var entry raft.Log
				for ; n > 0; n-- {
					err := l.GetLog(at, &entry)
					if err == nil {
						err = see(k, entry.Data)
					}
					if err != nil {
						return err
					}
					at++
				}
				return nil
			},
			rewind: func() error { at = first; return nil },
			trim: func() error {
				from := first
				first = at
				return l.DeleteRange(from, at-1)
			},
			close: l.Close,
		}, nil
	},
}
