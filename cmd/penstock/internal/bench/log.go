package bench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/measure"
	"github.com/penstock/penstock/segfile"
)

const (
	writtenLevel = penstock.Written
	syncedLevel  = penstock.Synced

	recordBytes = 100
	frameOf     = 100 // records per frame, where a row appends in batches
	readAtMost  = 1000
)

// pattern is what records are filled from: each byte is its index.
var pattern = func() (p [512]byte) {
	for i := range p {
		p[i] = byte(i)
	}
	return p
}()

// putRecord makes rec the record with the given number: eight bytes of number,
// then bytes that follow from it. They are copied, not counted up: a loop of a
// byte a step took half of the time of a row, on both sides, and twice as long
// in a binary where it lay across two cache lines (ADR 0104).
func putRecord(rec []byte, number int) {
	binary.LittleEndian.PutUint64(rec, uint64(number))
	for at := 8; at < len(rec); {
		at += copy(rec[at:], pattern[byte(number+at):][:256])
	}
}

func numberOf(rec []byte) int { return int(binary.LittleEndian.Uint64(rec)) }

// A diskLog is an open log with one partition and a reader that follows it.
type diskLog struct {
	log    *segfile.Log
	p      *segfile.Partition
	reader *segfile.Reader
	rec    []byte
}

func openLog(e env, level penstock.Durability, size int) (*diskLog, error) {
	log, err := segfile.Open(segfile.Config{Dir: e.dir, Topic: "bench", Durability: level, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	p := log.Partition(0)
	reader, err := p.NewReader(0)
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return &diskLog{log, p, reader, make([]byte, size)}, nil
}

func (d *diskLog) close() error { return errors.Join(d.reader.Close(), d.log.Close()) }

// append appends the records [from, to) in one frame and waits for its level.
func (d *diskLog) append(e env, rec []byte, from, to int) error {
	f := segfile.NewFrame(to - from)
	for n := from; n < to; n++ {
		putRecord(rec, n)
		f.Add(rec)
	}
	receipt, err := d.p.Append(e.ctx, f)
	if err != nil {
		return err
	}
	_, err = receipt.Wait(e.ctx)
	return err
}

// readBack reads and checks everything that was appended since the last call.
// laneOf says which lane of the tally a record belongs to.
func (d *diskLog) readBack(c *measure.Clock, k *measure.Tally, laneOf func(number int) int) error {
	want := make([]byte, len(d.rec))
	for {
		rs, err := d.reader.Next(readAtMost)
		if err != nil {
			return err
		}
		if rs.N == 0 {
			return nil
		}
		if k.Lanes() == 1 {
			k.Batch(0, rs.N, func(i int) int { return numberOf(rs.At(i)) })
		}
		for i := range rs.N {
			if k.Lanes() > 1 {
				n := numberOf(rs.At(i))
				k.Batch(laneOf(n), 1, func(int) int { return n })
			}
			if c.Every {
				if putRecord(want, numberOf(rs.At(i))); !bytes.Equal(rs.At(i), want) {
					return fmt.Errorf("record %d came back with other bytes", rs.First+penstock.Offset(i))
				}
			}
		}
	}
}

// settle ends an iteration: everything is read back and checked, and what was
// read gives its disk space back.
func (d *diskLog) settle(c *measure.Clock, lanes, events int) error {
	k := measure.NewTally(c, lanes, events)
	if err := d.readBack(c, k, func(n int) int { return n % lanes }); err != nil {
		return err
	}
	return errors.Join(k.Done(events), d.p.Trim(d.reader.Offset()))
}

func appendRow(level penstock.Durability, size, perFrame int) func(e env) (pair, error) {
	return func(e env) (pair, error) {
		d, err := openLog(e, level, size)
		if err != nil {
			return pair{}, err
		}
		ours := func(c *measure.Clock) error {
			var err error
			c.Start()
			for n := 0; n < e.events && err == nil; n += perFrame {
				err = d.append(e, d.rec, n, min(n+perFrame, e.events))
			}
			c.Stop(e.events)
			if err != nil {
				return err
			}
			return d.settle(c, 1, e.events)
		}
		raw := &rawFile{dir: e.dir, sync: level == syncedLevel}
		rec := make([]byte, size)
		base := func(c *measure.Clock) error {
			if err := raw.room(e.events * (size + frameOverhead)); err != nil {
				return err
			}
			begin := raw.at
			var err error
			c.Start()
			for n := 0; n < e.events && err == nil; n += perFrame {
				err = raw.append(rec, n, min(n+perFrame, e.events))
			}
			c.Stop(e.events)
			if err != nil {
				return err
			}
			k := measure.NewTally(c, 1, e.events)
			if err := raw.scan(begin, raw.at, size, k); err != nil {
				return err
			}
			return k.Done(e.events)
		}
		return pair{ours: ours, base: base, path: d.path, close: func() error { return errors.Join(d.close(), raw.close()) }}, nil
	}
}

// path says how most frames got into the file.
func (d *diskLog) path() string {
	if s := d.p.Stats(); s.Stored > s.Frames/2 {
		return "mapping"
	}
	return "pwrite"
}

// appendWriters compares many writers with one, on one log: what group commit
// gains.
func appendWriters(writers int) func(e env) (pair, error) {
	return func(e env) (pair, error) {
		d, err := openLog(e, syncedLevel, recordBytes)
		if err != nil {
			return pair{}, err
		}
		ours := func(c *measure.Clock) error {
			each := max(1, e.events/writers)
			errs := make([]error, writers)
			var wg sync.WaitGroup
			c.Start()
			for w := range writers {
				wg.Go(func() { // a writer: ends after its records; Wait below waits for it
					rec := make([]byte, recordBytes)
					for i := 0; i < each && errs[w] == nil; i++ {
						n := w + i*writers
						errs[w] = d.append(e, rec, n, n+1)
					}
				})
			}
			wg.Wait()
			c.Stop(each * writers)
			if err := errors.Join(errs...); err != nil {
				return err
			}
			return d.settle(c, writers, each*writers)
		}
		base := func(c *measure.Clock) error {
			n := max(1, e.events/32)
			var err error
			c.Start()
			for i := 0; i < n && err == nil; i++ {
				err = d.append(e, d.rec, i, i+1)
			}
			c.Stop(n)
			if err != nil {
				return err
			}
			return d.settle(c, 1, n)
		}
		return pair{ours: ours, base: base, close: d.close}, nil
	}
}

func readRow(e env) (pair, error) {
	d, err := openLog(e, writtenLevel, recordBytes)
	if err != nil {
		return pair{}, err
	}
	raw := &rawFile{dir: e.dir}
	closeAll := func() error { return errors.Join(d.close(), raw.close()) }
	err = raw.room(e.events * (recordBytes + frameOverhead))
	for n := 0; n < e.events && err == nil; n += frameOf {
		to := min(n+frameOf, e.events)
		err = errors.Join(d.append(e, d.rec, n, to), raw.append(d.rec, n, to))
	}
	if err != nil {
		return pair{}, errors.Join(err, closeAll())
	}
	ours := func(c *measure.Clock) error {
		reader, err := d.p.NewReader(d.p.Earliest())
		if err != nil {
			return err
		}
		k := measure.NewTally(c, 1, e.events)
		c.Start()
		for k.Count() < e.events {
			rs, nextErr := reader.Next(readAtMost)
			if nextErr != nil || rs.N == 0 {
				err = nextErr
				break
			}
			k.Batch(0, rs.N, func(i int) int { return numberOf(rs.At(i)) })
		}
		c.Stop(k.Count())
		return errors.Join(err, k.Done(e.events), reader.Close())
	}
	base := func(c *measure.Clock) error {
		k := measure.NewTally(c, 1, e.events)
		c.Start()
		err := raw.scan(0, raw.at, recordBytes, k)
		c.Stop(k.Count())
		return errors.Join(err, k.Done(e.events))
	}
	return pair{ours: ours, base: base, close: closeAll}, nil
}

// reopenScan is how much of a log a clean open may have to look at: one segment.
const reopenScan = 64 << 20

func reopenRow(e env) (pair, error) {
	const size = 1024
	d, err := openLog(e, writtenLevel, size)
	if err != nil {
		return pair{}, err
	}
	raw := &rawFile{dir: e.dir}
	err = raw.room(min(e.events*size, reopenScan) * 2)
	scanned := 0
	for n := 0; n < e.events && err == nil; n += frameOf {
		to := min(n+frameOf, e.events)
		if err = d.append(e, d.rec, n, to); err == nil && scanned*size < reopenScan {
			err = raw.append(d.rec, n, to)
			scanned = to
		}
	}
	if err = errors.Join(err, d.close()); err != nil {
		return pair{}, errors.Join(err, raw.close())
	}
	ours := func(c *measure.Clock) error {
		c.Start()
		d, err := openLog(e, writtenLevel, size)
		c.Stop(1)
		if err != nil {
			return err
		}
		return errors.Join(d.checkEnds(c, e.events), d.close())
	}
	base := func(c *measure.Clock) error {
		k := measure.NewTally(c, 1, scanned)
		c.Start()
		err := raw.scan(0, raw.at, size, k)
		c.Stop(1)
		return errors.Join(err, k.Done(scanned))
	}
	return pair{ours: ours, base: base, close: raw.close}, nil
}

// checkEnds checks the first and the last record of a log that was opened
// again, or all of them in the untimed pass.
func (d *diskLog) checkEnds(c *measure.Clock, events int) error {
	if end := d.p.Readable(); end != penstock.Offset(events) {
		return fmt.Errorf("the log ends at %d after it was opened again, want %d", end, events)
	}
	if c.Every {
		k := measure.NewTally(c, 1, events)
		return errors.Join(d.readBack(c, k, nil), k.Done(events))
	}
	for _, at := range []int{0, events - 1} {
		if err := d.reader.Seek(penstock.Offset(at)); err != nil {
			return err
		}
		rs, err := d.reader.Next(1)
		if err != nil {
			return err
		}
		if rs.N != 1 || numberOf(rs.At(0)) != at {
			return fmt.Errorf("offset %d does not hold record %d after the log was opened again", at, at)
		}
	}
	return nil
}

// rawName is the name of the baselines' file in a row's directory.
func rawName(dir string) string { return filepath.Join(dir, "raw") }
