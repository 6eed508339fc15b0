package penstock

import "fmt"

// Durability is the level that an acknowledgement has reached (ADR 0004).
// A higher level survives everything that a lower one survives.
type Durability uint8

const (
	// DurabilityDefault leaves the choice to the component: topics in memory
	// use Memory, topics on disk use Synced.
	DurabilityDefault Durability = iota
	// Memory is gone with the process.
	Memory
	// Written survives the death of the process (kill -9). It does not survive
	// power loss or a kernel crash: it is synced in the background.
	Written
	// Synced survives power loss, if the disk honours a flush: the data, and
	// the directory where a file was made, were flushed before the
	// acknowledgement.
	Synced
)

var durabilityNames = [...]string{"default", "memory", "written", "synced"}

// String returns the level's name as it stands in configuration, logs and
// metrics: default, memory, written or synced.
func (d Durability) String() string {
	if int(d) < len(durabilityNames) {
		return durabilityNames[d]
	}
	return fmt.Sprintf("durability(%d)", uint8(d))
}

// ParseDurability returns the level with the given name. The error matches
// [ErrInvalid] and names the levels that exist.
func ParseDurability(name string) (Durability, error) {
	for i, n := range durabilityNames {
		if n == name {
			return Durability(i), nil
		}
	}
	return 0, &FieldError{Field: "Durability", Reason: fmt.Sprintf("%q is not one of memory, written, synced", name)}
}
