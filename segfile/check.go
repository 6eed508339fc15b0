package segfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// Finding is something that a check noticed.
type Finding struct {
	// Severity is [penstock.Alarm] when something acknowledged cannot be read,
	// or a partition or group cannot go on; [penstock.Warning] when something
	// should be looked at; [penstock.Notice] for what is as it should be and may
	// surprise, such as a torn tail, which the next open cuts.
	Severity  penstock.Severity
	Topic     string
	Partition int    // -1 when it concerns the topic
	File      string // below the topic's directory, "/" between names; "" for none
	Position  int64  // in File
	// The events [First, Last] that are affected; none when Events is false.
	Events      bool
	First, Last penstock.Offset
	Text        string
}

// CheckConfig describes a check.
type CheckConfig struct {
	InspectConfig
	// Deep reads every frame of every segment. Without it a sealed segment is
	// believed when its header and its seal are right, and of the last one only
	// what is not known to be synced is read.
	Deep bool
	// Progress, if set, is called before each block of a segment is read. It must
	// not block for long.
	Progress func(Progress)
}

// Progress says how far a long look at a topic is.
type Progress struct {
	Topic       string
	Partition   int
	Partitions  int
	Done, Total penstock.Bytes // of the segment files of the partition
}

// CheckReport says what a check has looked at and what it found.
type CheckReport struct {
	Topic      string
	Deep       bool
	Partitions int
	Segments   int
	Groups     int
	Events     uint64         // kept, as far as could be told
	Read       penstock.Bytes // of frames
	Findings   []Finding
}

// Worst returns the highest severity among the findings.
func (r *CheckReport) Worst() (worst penstock.Severity) {
	for _, f := range r.Findings {
		worst = max(worst, f.Severity)
	}
	return worst
}

// Check looks for damage in a topic, without its lock and without changing
// anything: it may run beside the process that has the topic open. What is
// wrong is a finding, not an error. The error says why there was nothing to look
// at, or is that of ctx; the report then holds what was found until then.
func Check(ctx context.Context, c CheckConfig) (CheckReport, error) {
	if c.FS == nil {
		c.FS = vfs.OS()
	}
	r := CheckReport{Topic: c.Topic, Deep: c.Deep}
	in, err := Inspect(c.InspectConfig)
	if err != nil {
		if errors.Is(err, penstock.ErrCorrupt) || errors.Is(err, penstock.ErrUnsupported) {
			r.Findings = append(r.Findings, Finding{Severity: penstock.Alarm, Topic: c.Topic, Partition: -1, File: topicName, Text: err.Error()})
			return r, nil
		}
		return r, err
	}
	k := &checker{in: in, cfg: &c, report: &r}
	if err := k.topic(); err != nil {
		return r, err
	}
	for id := range in.topic.Partitions {
		if err := k.partition(ctx, id); err != nil {
			return r, err
		}
	}
	k.groups()
	return r, nil
}

// checker is one check under way.
type checker struct {
	in      *Inspection
	cfg     *CheckConfig
	report  *CheckReport
	f       *found
	total   int64
	done    int64
	seen    []map[string]stored // per partition: the groups that have a position
	sealEnd penstock.Offset     // where the segment before ends, as its seal tells
}

// add notes a finding about the partition at hand.
func (k *checker) add(s penstock.Severity, file string, pos int64, format string, args ...any) *Finding {
	r := k.report
	r.Findings = append(r.Findings, Finding{Severity: s, Topic: r.Topic, Partition: -1, Position: pos, Text: fmt.Sprintf(format, args...)})
	f := &r.Findings[len(r.Findings)-1]
	if k.f != nil {
		f.Partition = k.f.id
		f.File = partitionName(k.f.id)
	}
	if file != "" {
		f.File = strings.TrimPrefix(f.File+"/"+filepath.ToSlash(file), "/")
	}
	return f
}

// events says that a finding is about the events [first, to), if there are any.
func (f *Finding) events(first, to penstock.Offset) {
	if first < to {
		f.Events, f.First, f.Last = true, first, to-1
	}
}

// topic looks at FORMAT, and for partitions that topic.json does not know.
func (k *checker) topic() error {
	l := &Log{cfg: Config{FS: k.in.fs, Dir: k.cfg.Dir, Topic: k.cfg.Topic}}
	switch err := l.readFormat(); {
	case errors.Is(err, fs.ErrNotExist):
		k.add(penstock.Warning, "", 0, "the data directory has no file %s; the next open makes it", formatName)
	case refused(err):
		k.add(penstock.Warning, "", 0, "cannot be looked at: %v", err)
	case err != nil:
		k.add(penstock.Alarm, "", 0, "%v", err)
	}
	names, err := k.in.fs.List(k.in.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if id, ok := parsePartitionName(name); ok && id >= k.in.topic.Partitions {
			k.add(penstock.Alarm, name, 0, "directory of partition %d, and topic.json says %d partitions", id, k.in.topic.Partitions)
		}
	}
	return nil
}

// partition checks one partition.
func (k *checker) partition(ctx context.Context, id int) error {
	k.report.Partitions++
	f, err := k.in.look(id)
	if err != nil {
		k.f = &found{id: id}
		k.seen = append(k.seen, nil)
		if errors.Is(err, fs.ErrNotExist) {
			k.add(penstock.Alarm, "", 0, "%v", errNoPartition)
			return nil
		}
		k.add(penstock.Warning, "", 0, "cannot be looked at: %v", err)
		return nil
	}
	k.f, k.done, k.total = f, 0, 0
	for i := range f.segs {
		k.total += f.segs[i].size
	}
	k.names()
	if err := k.segments(ctx); err != nil {
		return err
	}
	return nil
}

// names notes what is in the directory besides the log.
func (k *checker) names() {
	f := k.f
	for i := range f.strays {
		s := &f.strays[i]
		k.add(penstock.Alarm, s.name(), 0, "%v: %v; a repair sets it aside and takes no event", errStray, s.err)
	}
	if f.bare {
		k.add(penstock.Alarm, groupsDir, 0, "%v", errNoGroups)
	}
	if f.exchanged() {
		k.add(penstock.Alarm, "", 0, "%v", errExchanged)
	}
	if f.blocked {
		k.add(penstock.Alarm, spareName, 0, "%v", errBlocked)
	}
	if errors.Is(f.lost, vfs.ErrNotRegular) {
		k.add(penstock.Alarm, stateName, 0, "%v: the topic cannot be opened; move it away", f.lost)
	} else if refused(f.lost) {
		k.add(penstock.Warning, stateName, 0, "cannot be looked at: %v", f.lost)
	} else if f.lost != nil {
		k.add(penstock.Warning, stateName, 0, "%v; the next open finds the end of the log by a scan", f.lost)
	}
	table, err := peekSlot(k.in.fs, filepath.Join(f.dir, producersName), producersMark, k.in.owner(f.id))
	if err == nil {
		_, _, err = decodeProducers(table.payload)
	}
	if err == nil {
		err = table.spoiled
	}
	switch {
	case errors.Is(err, vfs.ErrNotRegular):
		k.add(penstock.Alarm, producersName, 0, "%v: the topic cannot be opened; move it away", err)
	case refused(err):
		k.add(penstock.Warning, producersName, 0, "cannot be looked at: %v", err)
	case err != nil && !errors.Is(err, fs.ErrNotExist): // there is none before the first numbered append
		k.add(penstock.Warning, producersName, 0, "%v; what it says of repeated appends is found again by an open, as far as events are kept", err)
	}
	for _, name := range f.others {
		switch {
		case strings.HasSuffix(name, ".tmp"):
			k.add(penstock.Notice, name, 0, "unfinished file; the next open removes it")
		case strings.HasSuffix(name, segmentExt):
			k.add(penstock.Warning, name, 0, "is not the name of a segment; it is left alone")
		default:
			k.add(penstock.Notice, name, 0, "is no file of the log; it is left alone")
		}
	}
	cut, _ := k.in.fs.List(filepath.Join(f.dir, quarantineDir)) // there may be none
	for _, name := range cut {
		k.add(penstock.Notice, quarantineDir+"/"+name, 0, "what was once cut from the log; delete it when nobody wants it")
	}
}

// look reports progress; it is called before each block.
func (k *checker) look(pos int64) error {
	if k.cfg.Progress != nil {
		k.cfg.Progress(Progress{
			Topic: k.report.Topic, Partition: k.f.id, Partitions: k.in.topic.Partitions,
			Done: penstock.Bytes(min(k.done+pos, k.total)), Total: penstock.Bytes(k.total),
		})
	}
	return nil
}

// groups checks the stored positions, across partitions.
func (k *checker) groups() {
	all, worked := map[string]int{}, map[string]bool{}
	for _, part := range k.seen {
		for name, s := range part {
			all[name]++
			worked[name] = worked[name] || s.touched
		}
	}
	k.report.Groups = len(all)
	for id, part := range k.seen {
		for name := range all {
			if _, ok := part[name]; !ok && part != nil && worked[name] {
				k.f = &found{id: id}
				k.add(penstock.Warning, groupsDir+"/"+EscapeName(name)+slotExt, 0,
					"the position of group %q is missing, and other partitions have one; it begins at the earliest event there", name)
			}
		}
	}
}

// position checks one stored position against [start, end).
func (k *checker) position(g foundGroup, start, end penstock.Offset, whole bool) {
	file := groupsDir + "/" + EscapeName(g.name) + slotExt
	if g.spoiled != nil {
		k.add(penstock.Warning, file, 0, "%v; if that was the newest position of group %q, some events come again", g.spoiled, g.name)
	}
	switch c := g.stored.committed; {
	case refused(g.err):
		k.add(penstock.Warning, file, 0, "cannot be looked at: %v", g.err)
	case g.err != nil:
		k.add(penstock.Alarm, file, 0, "the position of group %q cannot be read: %v", g.name, g.err)
	case g.stored.ahead > 0:
		k.add(penstock.Alarm, file, 0, "group %q: %v", g.name, g.stored.errAhead()).events(c, g.stored.ahead)
	case c < start && g.spoiled != nil:
		k.add(penstock.Alarm, file, 0, "group %q stands at %d, in what is left of its position, and the first event kept is %d: a repair sets it there", g.name, c, start)
	case c < start:
		k.add(penstock.Warning, file, 0, "group %q stands at %d and the first event kept is %d: %d events were passed over", g.name, c, start, start-c).events(c, start)
	case c <= end || !whole:
	case g.stored.synced:
		k.add(penstock.Alarm, file, 0, "group %q stands at %d and the log ends at %d", g.name, c, end).events(end, c)
	default:
		k.add(penstock.Notice, file, 0, "group %q stands at %d and the log ends at %d after a power loss; the next open sets it back", g.name, c, end)
	}
}
