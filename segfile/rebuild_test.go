package segfile

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

const topicFile = "data/orders/" + topicName

func rebuildOf(c Config, apply bool) RebuildConfig {
	return RebuildConfig{InspectConfig: InspectConfig{FS: c.FS, Dir: c.Dir, Topic: c.Topic}, Apply: apply}
}

// TestTopicFileIsMadeAnew: from what is left of it and of the topic, with each of
// its bytes damaged, cut anywhere, and gone; the topic opens as before.
func TestTopicFileIsMadeAnew(t *testing.T) {
	whole := copyTree(t, golden)
	b := []byte(snapshot(t, whole, topicFile))
	damage := map[string][]byte{"gone": nil, "empty": {}, "garbage": []byte(strings.Repeat("?", 300))}
	for i := range b {
		was := slices.Clone(b)
		was[i] ^= 0x5a
		damage["flip "+string(rune('a'+i%26))+strings.Repeat("+", i/26)] = was
		damage["cut "+string(rune('a'+i%26))+strings.Repeat("+", i/26)] = b[:i]
	}
	for name, content := range damage {
		m := whole.Clone()
		must(t, m.Remove(topicFile))
		if content != nil {
			put(t, m, topicFile, content)
		}
		m = m.Clone()
		c := goldenConfig(m, "data")
		plan := rebuildOf(c, false)
		plan.Router = c.Router
		r, err := RebuildTopic(plan)
		if err != nil || r == nil {
			t.Fatalf("%s: %+v, %v", name, r, err)
		}
		if _, err := Inspect(plan.InspectConfig); !errors.Is(err, penstock.ErrCorrupt) {
			t.Fatalf("%s: the plan has changed something: %v", name, err)
		}
		plan.Apply = true
		done, err := RebuildTopic(plan)
		if err != nil || done.TopicInfo != r.TopicInfo || (done.Kept != "") != (content != nil) {
			t.Fatalf("%s: %+v, %v; planned %+v", name, done, err, r)
		}
		if content != nil && string(snapshot(t, m, "data/orders/"+done.Kept)) != string(content) {
			t.Fatalf("%s: the copy is another", name)
		}
		l := openLog(t, c)
		must(t, l.Partition(0).Fault())
		wantRecords(t, l.Partition(0), 0, goldenRecords()...)
		must(t, l.Close())
		if again, err := RebuildTopic(plan); again != nil || err != nil {
			t.Fatalf("%s: a second time: %+v, %v", name, again, err)
		}
	}
}

// TestTopicFileSurvivesPowerLossWhileItIsMadeAnew: at any moment the next repair
// ends it, and the damaged file is kept.
func TestTopicFileSurvivesPowerLossWhileItIsMadeAnew(t *testing.T) {
	m := copyTree(t, golden)
	overwrite(t, m, topicFile, []byte("?"), 0)
	was := string(snapshot(t, m, topicFile))
	m = m.Clone()
	c := goldenConfig(m, "data")
	_, err := RebuildTopic(rebuildOf(c, true))
	must(t, err)
	images := 0
	for img := range m.Images(vfs.Crashes{Seed: 13}) {
		images++
		c.FS = img.FS
		_, err := RebuildTopic(rebuildOf(c, true))
		must(t, err)
		if string(snapshot(t, img.FS, topicFile+".damaged-1")) != was {
			t.Fatalf("%s: the damaged file is lost", img.Desc)
		}
		l := openLog(t, c)
		wantRecords(t, l.Partition(0), 0, goldenRecords()...)
		must(t, l.Close())
	}
	if images < 10 {
		t.Fatalf("%d images are too few to mean anything", images)
	}
}

func TestTopicFileIsNotGuessedAgainstTheSegments(t *testing.T) {
	m := copyTree(t, golden)
	must(t, m.Remove(topicFile))
	c := goldenConfig(m, "data")
	wrong := rebuildOf(c, true)
	wrong.Codec = "json/1"
	_, err := RebuildTopic(wrong)
	wantErr(t, err, penstock.ErrInvalid)
	r, err := RebuildTopic(rebuildOf(c, true))
	must(t, err)
	if r.Codec != c.Codec || r.Router != assumedRouter || len(r.Assumed) != 1 {
		t.Errorf("%+v", r)
	}
	_, err = Open(c) // with another router: it says so
	wantErr(t, err, penstock.ErrInvalid)

	m = copyTree(t, golden) // a partition of another topic
	must(t, m.Remove(topicFile))
	c.FS = m
	b := snapshot(t, m, goldenSegment(1))
	h, err := decodeSegmentHeader(b)
	must(t, err)
	h.topic[0]++
	overwrite(t, m, goldenSegment(1), h.encode(), 0)
	_, err = RebuildTopic(rebuildOf(c, true))
	wantErr(t, err, penstock.ErrCorrupt)

	l := openLog(t, small(vfs.NewMem(), "data"))
	_, err = RebuildTopic(rebuildOf(l.cfg, true)) // in use
	wantErr(t, err, penstock.ErrLocked)
	if r, err := RebuildTopic(rebuildOf(l.cfg, false)); r != nil || err != nil {
		t.Errorf("a sound one: %+v, %v", r, err)
	}
}

// TestTopicFileWithoutARouterIsMadeAnewWithoutOne: a retry log has none. It used
// to be given that of a topic, and was refused from then on.
func TestTopicFileWithoutARouterIsMadeAnewWithoutOne(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	c.Router, c.Codec = "", "penstock.retry/1"
	l := openLog(t, c)
	_, err := tryAppend(l.Partition(0), "a")
	must(t, err)
	must(t, l.Close())
	m = m.Clone()
	overwrite(t, m, topicFile, []byte("?"), 0)
	c.FS = m
	r, err := RebuildTopic(rebuildOf(c, true))
	must(t, err)
	if r.Router != "" || r.Codec != c.Codec {
		t.Errorf("%+v", r)
	}
	l = openLog(t, c)
	must(t, l.Partition(0).Fault())
	must(t, l.Close())
}

// TestTopicFileOfALaterFormatIsLeftAlone: also when it looks damaged to this
// version, which FORMAT knows better.
func TestTopicFileOfALaterFormatIsLeftAlone(t *testing.T) {
	m := copyTree(t, golden)
	overwrite(t, m, topicFile, []byte("?"), 0)
	must(t, m.Remove("data/"+formatName))
	put(t, m, "data/"+formatName, []byte(formatMark+"\nformat 9.0\n"))
	c := goldenConfig(m, "data")
	_, err := RebuildTopic(rebuildOf(c, true))
	wantErr(t, err, penstock.ErrUnsupported)
}
