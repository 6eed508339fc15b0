package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/penstock/penstock/internal/measure"
	"github.com/penstock/penstock/segfile"
)

// killedTail is how many records of 1 KiB lie behind the last refresh of
// state.slot when a process is killed at the worst moment: a frame less than
// 8 MiB.
const killedTail = 81 * frameOf

// killedRow opens what a killed process has left: the files as they stand, with
// a prepared segment, and a state.slot from some 8 MiB before the end.
func killedRow(e env) (pair, error) {
	const size = 1024
	d, err := openLog(e, syncedLevel, size)
	if err != nil {
		return pair{}, err
	}
	raw := &rawFile{dir: e.dir}
	tail := min(e.events, killedTail)
	err = raw.room(tail * 2 * size)
	for n := 0; n < e.events && err == nil; n += frameOf {
		err = d.append(e, d.rec, n, min(n+frameOf, e.events))
	}
	for n := 0; n < tail && err == nil; n += frameOf {
		err = raw.append(d.rec, n, min(n+frameOf, tail))
	}
	part := filepath.Join(e.dir, "bench", "p00000")
	slot := filepath.Join(part, "state.slot")
	state, readErr := os.ReadFile(slot)
	if err = errors.Join(err, readErr, d.close()); err != nil {
		return pair{}, errors.Join(err, raw.close())
	}
	ours := func(c *measure.Clock) error {
		if err := errors.Join(prepared(filepath.Join(part, "next.tmp")), overwritten(slot, state)); err != nil {
			return err
		}
		c.Start()
		d, err := openLog(e, syncedLevel, size)
		c.Stop(1)
		if err != nil {
			return err
		}
		if r := d.log.Recovery()[0]; r.Clean || r.Scanned == 0 {
			return errors.Join(fmt.Errorf("the open read %d bytes, and the end was clean: %t", r.Scanned, r.Clean), d.close())
		}
		return errors.Join(d.checkEnds(c, e.events), d.close())
	}
	base := func(c *measure.Clock) error {
		k := measure.NewTally(c, 1, tail)
		c.Start()
		err := raw.scan(0, raw.at, size, k)
		c.Stop(1)
		return errors.Join(err, k.Done(tail))
	}
	return pair{ours: ours, base: base, close: raw.close}, nil
}

// prepared makes a file as the log prepares its next segment. The syncs of the
// appends behind it have made it durable with its name, by the time of a kill.
func prepared(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := errors.Join(preallocate(f, 64<<20), f.Sync(), f.Close()); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// overwritten stores into a file in place and without a sync, as the log
// refreshes state.slot.
func overwritten(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(content, 0)
	return errors.Join(err, f.Close())
}

// fsckRow checks every frame of a log that nobody has open.
func fsckRow(e env) (pair, error) {
	const size = 1024
	d, err := openLog(e, writtenLevel, size)
	if err != nil {
		return pair{}, err
	}
	raw := &rawFile{dir: e.dir}
	err = raw.room(e.events * (size + frameOverhead))
	for n := 0; n < e.events && err == nil; n += frameOf {
		to := min(n+frameOf, e.events)
		err = errors.Join(d.append(e, d.rec, n, to), raw.append(d.rec, n, to))
	}
	if err = errors.Join(err, d.close()); err != nil {
		return pair{}, errors.Join(err, raw.close())
	}
	ours := func(c *measure.Clock) error {
		k := segfile.CheckConfig{InspectConfig: segfile.InspectConfig{Dir: e.dir, Topic: "bench"}, Deep: true}
		c.Start()
		r, err := segfile.Check(e.ctx, k)
		c.Stop(e.events)
		if err == nil && (r.Events != uint64(e.events) || len(r.Findings) > 0) {
			err = fmt.Errorf("%d events were checked, want %d; findings: %v", r.Events, e.events, r.Findings)
		}
		return err
	}
	base := func(c *measure.Clock) error {
		k := measure.NewTally(c, 1, e.events)
		c.Start()
		err := raw.scan(0, raw.at, size, k)
		c.Stop(e.events)
		return errors.Join(err, k.Done(e.events))
	}
	return pair{ours: ours, base: base, close: raw.close}, nil
}
