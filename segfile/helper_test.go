package segfile

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// someFrames returns a segment's bytes: frames of all sizes one behind the other
// behind its header, and where each begins. In the payloads of some stand copies
// of earlier ones; sealed, it ends with a seal, followed by zeros and more frames.
func someFrames(rng *rand.Rand, seg *segment, size int, sealed bool) (b []byte, starts []int64) {
	b = make([]byte, headerSize)
	end := seg.hdr.base
	var copied []byte
	for len(b) < size {
		st := stamp{seed: seg.seed, base: end, epoch: 3 + uint32(len(starts)/9), time: int64(1 + rng.IntN(1000)), durable: int64(rng.IntN(len(b)) &^ 7)}
		starts = append(starts, int64(len(b)))
		if rng.IntN(40) == 0 {
			frame := make([]byte, frameHeaderSize)
			h := header{kind: typeBarrier, base: end, epoch: st.epoch, time: st.time, maxTime: st.time, durable: st.durable}
			h.put(frame, seg.seed)
			b = append(b, frame...)
			continue
		}
		records := 1 + rng.IntN(3)
		f := NewFrame(records)
		for range records {
			payload := make([]byte, rng.IntN(1<<uint(1+rng.IntN(19))))
			for i := 0; len(copied) > 0 && i+len(copied)+frameAlign < len(payload) && rng.IntN(3) > 0; i += len(copied) {
				at := (8 - (len(b)+frameHeaderSize+4*records+len(f.buf)-f.head+i)%8) % 8 // where a frame could begin
				copy(payload[i+at:], copied)
			}
			f.Add(payload)
		}
		b = f.appendTo(b, st)
		frame := b[starts[len(starts)-1]:]
		if len(frame) < 4000 && (copied == nil || rng.IntN(4) == 0) {
			copied = slices.Clone(frame)
		}
		h, err := parseFrame(frame, seg.seed)
		if err != nil {
			panic(err)
		}
		end = h.end()
		f.Release()
	}
	if sealed {
		starts = append(starts, int64(len(b)))
		b = append(b, encodeSeal(&summary{end: end}, stamp{seed: seg.seed, base: end, epoch: 4, time: 5})...)
		b = append(b, make([]byte, 1<<10)...)
		b = append(b, copied...)
	}
	return b, starts
}

// helpAtOnce has a helper check everything that it may before the scan reads its
// first block, or leaves it to a goroutine that runs at the same time.
func helpAtOnce(v *fileView) (blocks *int) {
	help := make(chan *helper, 1)
	blocks = new(int)
	v.help = help
	v.look = func(int64) error {
		*blocks++
		select {
		case h := <-help:
			h.run()
		default:
		}
		return nil
	}
	return blocks
}

// TestHelpedScanFindsWhatAScanFinds: whatever stands in a segment, a scan that is
// helped ends at the same place for the same reason, and knows the same of what
// lies before it; of the index it may have fewer entries, all of them right.
func TestHelpedScanFindsWhatAScanFinds(t *testing.T) {
	rounds := 24
	if testing.Short() {
		rounds = 6
	}
	rng := rand.New(rand.NewPCG(6, 1))
	seg := newSegment(nil, "", segmentHeader{base: 70, nonce: 9})
	joined, misled := 0, 0
	for round := range rounds {
		b, starts := someFrames(rng, seg, partBytes*(1+rng.IntN(9))+rng.IntN(partBytes), round%3 == 1)
		ahead := int64(len(b))
		switch round % 4 {
		case 1: // a byte somewhere is another
			b[headerSize+rng.IntN(len(b)-headerSize)] ^= 1 << uint(rng.IntN(8))
		case 2: // it ends in zeros, which are not known to be none
			b = append(b[:len(b)-rng.IntN(partBytes/2)], make([]byte, partBytes)...)
			ahead = int64(len(b))
		case 3: // more was written than is known
			ahead -= int64(rng.IntN(len(b) / 2))
		}
		from := mark{seg: seg, pos: headerSize, end: seg.hdr.base, rolling: 77}
		want, wantErr := follow(&fileView{file: bytes.NewReader(b), size: int64(len(b))}, from, nil)
		for _, beside := range []bool{false, true} {
			v := &fileView{file: bytes.NewReader(b), size: int64(len(b)), ahead: ahead}
			blocks := helpAtOnce(v)
			if beside {
				help := make(chan *helper, 1)
				v.help, v.look = help, nil
				done := make(chan struct{})
				go func() { // helps beside the scan: ends when help is closed, waited for below
					defer close(done)
					for h := range help {
						h.run()
					}
				}()
				defer func() { <-done }()
				defer close(help)
			}
			got, err := scan(v, from)
			name := fmt.Sprintf("round %d, beside %t, %d bytes", round, beside, len(b))
			if fmt.Sprint(err) != fmt.Sprint(wantErr) || fmt.Sprint(got.cause) != fmt.Sprint(want.cause) || got.mark != want.mark ||
				got.epoch != want.epoch || got.durable != want.durable || got.maxTime != want.maxTime || got.bytes != want.bytes {
				t.Fatalf("%s:\n%+v, %v, want\n%+v, %v", name, got.mark, got.cause, want.mark, want.cause)
			}
			if !beside && want.pos > headerSize+4*partBytes && *blocks < 6 {
				joined++
			}
			last := int64(headerSize)
			for _, e := range got.index {
				h, err := parseFrameAt(b, e.pos, seg.seed)
				if !slices.Contains(starts, e.pos) || err != nil || h.base != e.offset || e.pos-last < indexEvery || e.maxTime < h.maxTime {
					t.Fatalf("%s: entry %+v of the index behind %d is of %+v, %v", name, e, last, h, err)
				}
				last = e.pos
			}
			if len(got.index) < len(want.index)/2 {
				t.Fatalf("%s: %d entries in the index, %d without help", name, len(got.index), len(want.index))
			}
		}
		for at := int64(headerSize + partBytes); at < int64(len(b)); at += partBytes {
			if m, ok := (&fileView{file: bytes.NewReader(b), size: int64(len(b))}).next(at, at+partBytes, seg); ok && !slices.Contains(starts, m.pos) {
				misled++
			}
		}
	}
	if joined == 0 || misled == 0 {
		t.Errorf("%d scans took over what a helper had found, and %d parts begin with a copy of a frame: this shows little", joined, misled)
	}
}

func parseFrameAt(b []byte, pos int64, seed uint32) (header, error) {
	n, err := parseLength(b[pos:], int64(len(b))-pos)
	if err != nil {
		return header{}, err
	}
	return parseFrame(b[pos:pos+int64(n)], seed)
}

// TestHelperThatHasNotComeIsNotWaitedFor: who would help is still busy with
// something else when the scan has ended.
func TestHelperThatHasNotComeIsNotWaitedFor(t *testing.T) {
	seg := newSegment(nil, "", segmentHeader{nonce: 9})
	b, _ := someFrames(rand.New(rand.NewPCG(6, 2)), seg, 4*partBytes, false)
	help := make(chan *helper, 1)
	v := &fileView{file: bytes.NewReader(b), size: int64(len(b)), ahead: int64(len(b)), help: help}
	ended := make(chan scanned, 1)
	go func() { // ends with the scan; waited for below
		s, _ := scan(v, mark{seg: seg, pos: headerSize})
		ended <- s
	}()
	select {
	case s := <-ended:
		if s.pos != int64(len(b)) {
			t.Fatalf("the scan ended at %d of %d: %v", s.pos, len(b), s.cause)
		}
	case <-time.After(time.Minute):
		t.Fatal("the scan waits for a helper that never came")
	}
	h := <-help
	h.run() // finds nothing left, and ends
	if slices.ContainsFunc(h.parts, func(p scanned) bool { return p.seg != nil }) {
		t.Fatal("a helper that came too late has read something")
	}
}
