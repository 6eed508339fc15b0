package segfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/penstock/penstock/internal/vfs"
)

// A directory without a topic.json is one of two: a topic whose making was cut
// short, which is made again from the beginning, or one that was used and lost
// the file. Offsets of the latter must not be given out again, so what a topic
// has only once it is used tells them apart: a segment, a stored position, a
// table of producers, and a state.slot that says more than that of a new
// partition (ADR 0106).

// remains returns what tells that the directory of a topic was in use, in words;
// "" when nothing does. An error comes with the name of what could not be read,
// which may have told it, except when the directory cannot be listed.
func remains(fsys vfs.FS, dir string) (string, error) {
	parts, err := fsys.List(dir)
	if err != nil {
		return "", err
	}
	for _, part := range parts {
		if _, ok := parsePartitionName(part); !ok {
			continue
		}
		if info, err := fsys.Stat(filepath.Join(dir, part)); err == nil && !info.Dir {
			continue
		}
		what, err := remainsOf(fsys, filepath.Join(dir, part))
		if what != "" || err != nil {
			return part + " holds " + what, err
		}
	}
	return "", nil
}

// inUse reports whether a directory is that of a topic that was in use.
func inUse(fsys vfs.FS, dir string) bool {
	what, _ := remains(fsys, dir) // what cannot be read may tell it
	return what != ""
}

func remainsOf(fsys vfs.FS, dir string) (string, error) {
	files, err := fsys.List(dir)
	if err != nil {
		return "files that cannot be listed", err
	}
	for _, name := range files {
		switch {
		case strings.HasSuffix(name, segmentExt):
			return "segments", nil
		case name == producersName:
			return producersName, nil
		case name == groupsDir:
			positions, err := fsys.List(filepath.Join(dir, name))
			if err != nil {
				return "positions that cannot be listed", err
			}
			for _, p := range positions {
				if strings.HasSuffix(p, slotExt) {
					return "the position " + groupsDir + "/" + p, nil
				}
			}
		case name == stateName:
			if used, err := usedState(fsys, filepath.Join(dir, name)); used || err != nil {
				return "a used " + stateName, err
			}
		}
	}
	return "", nil
}

// usedState reports whether state.slot is other than that of a new partition. It
// has its name with what a new one says, durably, so one that says nothing was
// damaged later.
func usedState(fsys vfs.FS, path string) (bool, error) {
	slots, err := readSlots(fsys, path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", stateName, err)
	}
	for _, s := range slots {
		st, err := decodeState(s.payload)
		if s.mark != stateMark || err != nil || st.start > 0 || st.end > 0 || st.position > 0 {
			return true, nil
		}
	}
	return len(slots) == 0, nil
}

// looseSlot is a slot of which is not known whose it is.
type looseSlot struct {
	mark    string
	owner   owner
	payload []byte
}

// readSlots reads the slots of a file whose checksums are right.
func readSlots(fsys vfs.FS, path string) (all []looseSlot, err error) {
	f, err := fsys.Open(path, false)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, 2*slotSize)
	n, err := f.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return nil, err
	}
	le := binary.LittleEndian
	for b = b[:n]; len(b) >= slotSize; b = b[slotSize:] {
		s, payload := b[:slotSize], le.Uint32(b[36:])
		if string(s[:4]) != stateMark[:4] || le.Uint32(s[slotSize-4:]) != crc32.Checksum(s[:slotSize-4], castagnoli) || payload > slotRoom {
			continue
		}
		all = append(all, looseSlot{
			mark: string(s[:8]), owner: owner{topic: uuid(s[16:32]), partition: le.Uint32(s[32:])},
			payload: s[slotPayload : slotPayload+payload],
		})
	}
	return all, nil
}
