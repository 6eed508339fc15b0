package stream

import "context"

// consumer finds who is given the group. What was found for the one before is
// kept with the subscription: with many of them each look-up costs lines of the
// provider's table that are in no cache.
func (d *delivery) consumer(ctx context.Context) (Consumer, error) {
	r, rec := d.run, &d.offer.Subscription
	if d.known != nil && !d.known.gone.Load() {
		return d.known.consumer, nil
	}
	d.known = nil
	if r.attached != nil && !rec.Implicit {
		if d.known = r.attached(*rec); d.known != nil {
			return d.known.consumer, nil
		}
	}
	return r.resolve(ctx, *rec)
}
