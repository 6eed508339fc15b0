package segfile

import (
	"context"
	"slices"
	"testing"

	"github.com/penstock/penstock"
)

// TestTopicWhoseNameIsNotUTF8IsOpenedAgain: JSON turned each such byte into
// U+FFFD, and what topic.json gave back was no longer the name.
func TestTopicWhoseNameIsNotUTF8IsOpenedAgain(t *testing.T) {
	each(t, func(t *testing.T, c Config) {
		c.Topic = "\xff\xfea\ufffd"
		for round := range 2 {
			l := openLog(t, c)
			wantRecords(t, l.Partition(0), 0, []string{"a", "b"}[:round]...)
			mustAppend(t, l.Partition(0), []string{"a", "b"}[round])
			must(t, l.Close())
		}
		names, err := Topics(c.FS, c.Dir)
		must(t, err)
		if !slices.Equal(names, []string{c.Topic}) {
			t.Errorf("topics %q", names)
		}
		if bad := findings(mustCheck(t, c, true), penstock.Alarm); len(bad) > 0 {
			t.Errorf("alarms %q", bad)
		}
		all, _, err := dumpAll(inspect(t, c), DumpConfig{})
		must(t, err)
		if !slices.Equal(all, []string{"a", "b"}) {
			t.Errorf("dumped %q", all)
		}
		in := InspectConfig{FS: c.FS, Dir: c.Dir, Topic: c.Topic}
		_, err = Salvage(context.Background(), SalvageConfig{InspectConfig: in, To: c.Dir + "/copy", Apply: true})
		must(t, err)
		other := c
		other.Dir += "/copy"
		l := openLog(t, other)
		wantRecords(t, l.Partition(0), 0, "a", "b")
		must(t, l.Close())

		other = c
		other.Topic = "\xfe\xffa\ufffd" // reads the same in topic.json, and is another
		l = openLog(t, other)
		wantRecords(t, l.Partition(0), 0)
		must(t, l.Close())
	})
}

func TestIDsThatAreNotUTF8AreRefused(t *testing.T) {
	for _, set := range []func(*Config){
		func(c *Config) { c.Router = "\xff" }, func(c *Config) { c.Codec = "\xff" }, func(c *Config) { c.Tenant = "\xff" },
	} {
		each(t, func(t *testing.T, c Config) {
			set(&c)
			_, err := Open(c)
			wantErr(t, err, penstock.ErrInvalid)
		})
	}
}
