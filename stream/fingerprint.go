package stream

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/penstock/penstock"
)

// ErrMapperChanged: a provider's mapper puts streams on other queues than the
// one that its subscriptions were kept with. See [MapperError].
var ErrMapperChanged = errors.New("mapper has changed")

// MapperError says which fingerprints differ. It matches [ErrMapperChanged].
type MapperError struct {
	Provider    string
	Kept, Given string // fingerprints
}

func (e *MapperError) Error() string {
	return fmt.Sprintf("provider %q: mapper %s was kept, this one is %s: streams would move to other queues; "+
		"number, names and hash of the queues must stay, or the change be forced", e.Provider, e.Kept, e.Given)
}

// Is reports whether target is ErrMapperChanged.
func (e *MapperError) Is(target error) bool { return target == ErrMapperChanged }

// MapperKeeper is implemented by registries that outlive the process. The
// provider shows it the fingerprint of its mapper when it is opened.
type MapperKeeper interface {
	// KeepMapper stores the fingerprint of a provider's mapper when it has none
	// yet, or when force is true. The error matches ErrMapperChanged when it
	// has another one.
	KeepMapper(ctx context.Context, provider, fingerprint string, force bool) error
}

// fingerprintProbes is how many streams a fingerprint asks the mapper for.
const fingerprintProbes = 1024

// Fingerprint returns a text that tells mappers apart: two mappers with equal
// fingerprints have the same queues, by number, name and place on the ring,
// and put the same 1,024 fixed streams on the same ones. It is the same on
// every platform and in every process.
func Fingerprint(m Mapper) string {
	h := fnvOffset64
	add := func(v uint64) {
		for range 8 {
			h = (h ^ (v & 0xff)) * fnvPrime64
			v >>= 8
		}
	}
	queues := m.Queues()
	for _, q := range queues {
		add(uint64(q.Number))
		add(uint64(q.Ring))
		add(penstock.HashKey(q.Name))
	}
	for i := range fingerprintProbes {
		add(uint64(m.QueueFor(penstock.StreamID{Namespace: "probe", Key: strconv.Itoa(i)}).Number))
	}
	return fmt.Sprintf("m1:%d:%016x", len(queues), h)
}

const (
	fnvOffset64 uint64 = 14695981039346656037
	fnvPrime64  uint64 = 1099511628211
)

// checkMapper refuses a mapper whose queues are not in their places.
func checkMapper(m Mapper) error {
	if m == nil {
		return &penstock.FieldError{Field: "Factory", Reason: "makes no mapper"}
	}
	for i, q := range m.Queues() {
		if q.Number != i {
			return &penstock.FieldError{Field: "Factory", Reason: fmt.Sprintf("maps to queue %s in place %d", q, i)}
		}
	}
	return nil
}

// keepMapper shows the mapper to a registry that remembers it.
func keepMapper(c *Config, m Mapper) error {
	k, ok := c.Registry.(MapperKeeper)
	if !ok {
		return nil
	}
	return k.KeepMapper(context.Background(), c.Name, Fingerprint(m), c.RemapQueues)
}
