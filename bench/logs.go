package main

import (
	"encoding/binary"
	"errors"
	"os"

	"github.com/penstock/penstock/internal/measure"
)

// recordBytes is the size of the records of the workloads of logs.
const recordBytes = 100

// A logConn is an open log on disk, with a place from which it is read.
type logConn struct {
	append func(records [][]byte) error // returns when they have reached the level
	read   func(k *order, n int) error  // the next n, one after the other
	rewind func() error                 // to the first
	trim   func() error                 // deletes what was read, as far as it can
	close  func() error
}

// records are numbered from 0 on.
func recordsOf(n int) [][]byte {
	all := make([][]byte, n)
	for i := range all {
		all[i] = make([]byte, recordBytes)
		binary.LittleEndian.PutUint64(all[i], uint64(i))
		for j := 8; j < recordBytes; j++ {
			all[i][j] = byte(i + j)
		}
	}
	return all
}

// see looks at a record.
func see(k *order, record []byte) error {
	if len(record) != recordBytes {
		return errors.New("a record came back with another size")
	}
	k.see(int(binary.LittleEndian.Uint64(record)))
	return nil
}

// openLog opens a peer's log in a directory of its own. Nil: it has none of that
// kind.
func openLog(p peer, synced bool) (*logConn, error) {
	dir, err := os.MkdirTemp("", "penstock-bench-")
	if err != nil {
		return nil, err
	}
	l, err := p.log(dir, synced)
	if l == nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	end := l.close
	l.close = func() error { return errors.Join(end(), os.RemoveAll(dir)) }
	return l, err
}

func (l *logConn) appendAll(records [][]byte, size int) error {
	for rest := records; len(rest) > 0; {
		n := min(size, len(rest))
		if err := l.append(rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// logAppendSide appends in calls of size records, of which an iteration has a
// part of the usual number of events.
func logAppendSide(synced bool, size, part int) func(p peer, events int) (*contestant, error) {
	return func(p peer, events int) (*contestant, error) {
		l, err := openLog(p, synced)
		if l == nil || err != nil {
			return nil, err
		}
		records := recordsOf(max(size, events/part))
		run := func(c *measure.Clock) error {
			c.Start()
			err := l.appendAll(records, size)
			c.Stop(len(records))
			if err != nil {
				return err
			}
			k := newOrder(inSequence, c.Every, len(records))
			if err := l.read(k, len(records)); err != nil {
				return err
			}
			return errors.Join(together(len(records), k), l.trim())
		}
		return &contestant{run: run, close: l.close}, nil
	}
}

// logReadSide reads what was appended before the clock, from the first record on.
func logReadSide(p peer, events int) (*contestant, error) {
	l, err := openLog(p, false)
	if err == nil && l == nil {
		l, err = openLog(p, true)
	}
	if l == nil || err != nil {
		return nil, err
	}
	n := 4 * events
	if err := l.appendAll(recordsOf(n), atMost); err != nil {
		return nil, errors.Join(err, l.close())
	}
	run := func(c *measure.Clock) error {
		if err := l.rewind(); err != nil {
			return err
		}
		k := newOrder(inSequence, c.Every, n)
		c.Start()
		err := l.read(k, n)
		c.Stop(n)
		return errors.Join(err, together(n, k))
	}
	return &contestant{run: run, close: l.close}, nil
}
