package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/segfile"
)

type fsckCmd struct {
	logDir
	Deep bool `help:"Read every frame of every segment. Otherwise sealed segments are believed when their ends are right."`
}

// Help is shown by --help.
func (fsckCmd) Help() string {
	return `Looks for damage in the topics of a data directory, takes no lock and changes nothing: a process may be using it.
Findings are alarms, which are damage; warnings, which should be looked at; and notices, which are as they should be.
The verdict on a topic is that of its worst finding:

    sound     nothing but notices
    warning   should be looked at; no event is lost
    damaged   an alarm was found: see what a repair would do with penstock repair
    unknown   the check did not come to an end, for the reason that is told, and found no damage before

Exit codes: 0, also with warnings; 6, damage, also of what keeps a check from its end; 1, a check was kept from its end
by something else, as a right that is missing; 130, interrupted.

Example:

    penstock fsck --deep data`
}

// finding is a finding in JSON.
type finding struct {
	Severity  string           `json:"severity"`
	Partition int              `json:"partition"` // -1: of the topic
	File      string           `json:"file,omitempty"`
	Position  int64            `json:"position,omitempty"`
	First     *penstock.Offset `json:"first,omitempty"`
	Last      *penstock.Offset `json:"last,omitempty"`
	Text      string           `json:"text"`
}

// checked is the result for one topic in JSON.
type checked struct {
	Topic      string    `json:"topic"`
	Verdict    string    `json:"verdict"`         // sound, warning, damaged, or unknown: the check did not come to an end
	Error      string    `json:"error,omitempty"` // why it did not
	Deep       bool      `json:"deep"`
	Partitions int       `json:"partitions"`
	Segments   int       `json:"segments"`
	Groups     int       `json:"groups"`
	Events     uint64    `json:"events"`
	Read       int64     `json:"read_bytes"`
	Findings   []finding `json:"findings"`
}

// Run checks.
func (c *fsckCmd) Run(e *env) (err error) {
	defer func() { err = c.told(err) }()
	topics, err := c.topics()
	if err != nil {
		return err
	}
	all := []checked{}
	damaged, failed := 0, []error(nil)
	p := newProgress(e.stderr)
	for _, name := range topics {
		r, err := c.check(e, p, name)
		all = append(all, r)
		if r.Verdict == "damaged" {
			damaged++
		}
		if err != nil {
			failed = append(failed, err)
		}
		if e.ctx.Err() != nil {
			break
		}
	}
	p.end()
	werr := c.write(e, all)
	if readerGone(werr) { // the exit code still says what was found
		werr = nil
	}
	if err := errors.Join(append(failed, werr)...); werr != nil || damaged == 0 || e.ctx.Err() != nil {
		return err
	}
	return &failure{code: exitDamaged, what: fmt.Sprintf("damaged in %s: %d of %s", c.Dir, damaged, count(len(all), "topic")),
		why: "acknowledged data is never skipped silently",
		fix: "keep a copy of the directory, then run: penstock repair " + c.Dir}
}

func verdictOf(s penstock.Severity) string {
	switch s {
	case penstock.Alarm:
		return "damaged"
	case penstock.Warning:
		return "warning"
	}
	return "sound"
}

// check checks a topic and the retry logs of its groups.
func (c *fsckCmd) check(e *env, p *progress, topic string) (checked, error) {
	config := segfile.CheckConfig{InspectConfig: segfile.InspectConfig{Dir: c.Dir, Topic: topic}, Deep: c.Deep, Progress: p.show}
	r, err := segfile.Check(e.ctx, config)
	logs, gone := retryLogs(c.Dir, topic)
	for _, l := range logs {
		if err != nil {
			break
		}
		config.InspectConfig = segfile.InspectConfig{Dir: l.dir, Topic: l.group}
		var sub segfile.CheckReport
		sub, err = segfile.Check(e.ctx, config)
		for _, f := range sub.Findings {
			f.File = filepath.ToSlash(filepath.Join(l.path, f.File))
			r.Findings = append(r.Findings, f)
		}
		r.Read += sub.Read
		r.Segments += sub.Segments
	}
	for _, path := range gone {
		r.Findings = append(r.Findings, segfile.Finding{Severity: penstock.Alarm, Partition: -1, File: path, Text: "the retry log was made and is missing"})
	}
	out := checked{
		Topic: topic, Verdict: verdictOf(r.Worst()), Deep: r.Deep, Partitions: r.Partitions, Segments: r.Segments, Groups: r.Groups,
		Events: r.Events, Read: int64(r.Read), Findings: []finding{},
	}
	if err != nil {
		out.Error = err.Error()
		if out.Verdict != "damaged" {
			out.Verdict = "unknown"
		}
	}
	for _, f := range r.Findings {
		j := finding{Severity: f.Severity.String(), Partition: f.Partition, File: f.File, Position: f.Position, Text: f.Text}
		if f.Events {
			j.First, j.Last = &f.First, &f.Last
		}
		out.Findings = append(out.Findings, j)
	}
	return out, err
}

func (c *fsckCmd) write(e *env, all []checked) error {
	if c.json() {
		return encode(e.stdout, map[string]any{"topics": all})
	}
	for _, t := range all {
		more := ""
		if !t.Deep {
			more = "; --deep reads all"
		}
		for _, f := range t.Findings {
			if _, err := fmt.Fprintf(e.stdout, "%s\n", f.line(t.Topic)); err != nil {
				return err
			}
		}
		if t.Error != "" {
			if _, err := fmt.Fprintf(e.stdout, "%s: the check did not come to an end: %s\n", t.Topic, t.Error); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintf(e.stdout, "%s: %s: %s in %s of %s, %s, %s of frames read%s\n",
			t.Topic, t.Verdict, count(t.Events, "event"), count(t.Segments, "segment"), count(t.Partitions, "partition"), count(t.Groups, "group"),
			size(penstock.Bytes(t.Read)), more); err != nil {
			return err
		}
	}
	return nil
}

// line writes a finding for people.
func (f *finding) line(topic string) string {
	s := fmt.Sprintf("%-7s  %s", f.Severity, topic)
	if f.File != "" {
		s += "/" + f.File
	}
	if f.Position > 0 {
		s += fmt.Sprintf(" at %d", f.Position)
	}
	if f.First != nil {
		s += fmt.Sprintf(", events %d to %d", *f.First, *f.Last)
	}
	return s + ": " + f.Text
}
