package penstock

// FlushReason is why a batch was delivered with the size that it has.
type FlushReason uint8

const (
	// FlushUnknown: the carrier does not say.
	FlushUnknown FlushReason = iota
	// FlushCount: the largest number of events was reached.
	FlushCount
	// FlushBytes: the largest size in bytes was reached.
	FlushBytes
	// FlushLinger: nothing more was at hand, and the time to wait for more was
	// over, or there is none, or as many as are waited for were there.
	FlushLinger
	// FlushRetry: the events failed before and come again.
	FlushRetry
)

var flushNames = [...]string{"unknown", "count", "bytes", "linger", "retry"}

// String returns the reason as it stands in metrics, for example "count".
func (r FlushReason) String() string {
	if int(r) >= len(flushNames) {
		r = FlushUnknown
	}
	return flushNames[r]
}
