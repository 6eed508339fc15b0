module github.com/penstock/penstock/bench

go 1.26.0

replace github.com/penstock/penstock => ..

require (
	code.cloudfoundry.org/go-diodes v0.0.0-20231113191959-85adc333ee36
	github.com/ThreeDotsLabs/watermill v1.5.1
	github.com/Workiva/go-datastructures v1.1.7
	github.com/asaskevich/EventBus v0.0.0-20200907212545-49d423059eef
	github.com/cskr/pubsub/v2 v2.0.2
	github.com/eapache/channels v1.1.0
	github.com/penstock/penstock v0.0.0
	github.com/puzpuzpuz/xsync/v4 v4.5.0
	github.com/samber/ro v0.3.0
	github.com/smallnest/chanx v1.2.0
	github.com/sourcegraph/conc v0.3.0
)

require (
	github.com/eapache/queue v1.1.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/lithammer/shortuuid/v3 v3.0.7 // indirect
	github.com/oklog/ulid v1.3.1 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	github.com/samber/lo v1.52.0 // indirect
	go.uber.org/atomic v1.7.0 // indirect
	go.uber.org/multierr v1.9.0 // indirect
	golang.org/x/exp v0.0.0-20220303212507-bbda1eaf7a17 // indirect
	golang.org/x/sys v0.50.0 // indirect
	golang.org/x/text v0.22.0 // indirect
)
