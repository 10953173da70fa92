// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package query

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/deploy"
	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/kube/lead"
)

// AddSchedulerFlags adds the flags that select the scheduler's configuration.
func (q *Question) AddSchedulerFlags(flags *pflag.FlagSet) {
	flags.StringVar(&q.Config, "config", "",
		"the scheduler's configuration file, as for kube-scheduler (default: that of the scheduler that runs)")
	flags.StringVar(&q.schedulerURL, "scheduler-url", "",
		"endpoints of the scheduler, such as http://127.0.0.1:10251, to ask for its configuration and decisions (default: those of "+
			"berth up)")
	flags.StringSliceVar(&q.schedulerLeases, "scheduler-lease", nil,
		"Lease of the scheduler, as NAMESPACE/NAME or NAMESPACE, whose configuration is trusted, besides those in kube-system and "+deploy.Namespace+" (repeatable)")
}

// LoadConfiguration reads the scheduler's configuration file. It honours tolerations with Gt and
// Lt, because an API server with the feature gate off stores none.
func LoadConfiguration(path string, stderr io.Writer) (*config.Config, error) {
	c, err := config.Load(path, config.Options{CompareTolerations: true})
	if err != nil {
		return nil, err
	}
	for _, note := range c.Notes {
		print.Line(stderr, "%s: %s", path, note)
	}
	return c, nil
}

// scheduler returns the scheduler to query, or nil. For files it is nil unless a flag names a
// scheduler.
func (q *Question) scheduler() *Scheduler {
	if len(q.Files) > 0 && q.schedulerURL == "" || q.unanswered {
		return nil
	}
	return &Scheduler{q.schedulerURL, &q.Cluster, q.UserAgent}
}

// noteSilent records that the scheduler does not respond, so that it is not queried again for this
// result. It prints a failure without returning an error: the engine needs no scheduler.
func (q *Question) noteSilent(cmd *cobra.Command, err error) {
	if err != nil {
		q.unanswered = true
		print.Line(q.notices(cmd), "not asked: the scheduler: %v", err)
	}
}

// Decision requests the last decision about a pod from the live scheduler. It returns nil without a
// scheduler, or if the pod is unknown to it.
func (q *Question) Decision(cmd *cobra.Command, namespace, name string) (d *decision.Decision) {
	if s := q.scheduler(); s != nil {
		var err error
		d, err = s.Decision(cmd.Context(), namespace, name)
		q.noteSilent(cmd, err)
	}
	return d
}

// running returns the configuration for the result: the file read by Prepare, or the one in use by
// the running schedulers, queried directly or announced in their Leases.
func (q *Question) running(cmd *cobra.Command, leases []*coordinationv1.Lease, now time.Time) (*config.Running, error) {
	q.assumed, q.stopped, q.unanswered = "", nil, false
	trusted := lead.Trusted(q.schedulerLeases...)
	if q.Config != "" {
		q.stopped = config.StoppedOf(nil, leases, trusted, now)
		return &config.Running{Profiles: q.named.Profiles, Stopped: q.stopped}, nil
	}

	var inUse *config.InUse
	if s := q.scheduler(); s != nil {
		var err error
		inUse, err = s.InUse(cmd.Context())
		q.noteSilent(cmd, err)
	}
	r, err := config.RunningOf(inUse, leases, trusted, now)
	if err != nil {
		return nil, err
	}
	q.assumed, q.stopped = r.Assumed, r.Stopped
	if len(r.Ignored) > 0 {
		print.Line(q.notices(cmd), "ignored: %s of schedulers in untrusted namespaces, such as %s (if it is Berth's: --scheduler-lease)",
			answer.Count(len(r.Ignored), "Lease"), r.Ignored[0])
	}
	return r, nil
}

// configFor returns the configuration for queries about a set, and notes the assumptions in its
// source. Manifests that are not from a cluster have no scheduler, so they need no assumption.
func (q *Question) configFor(cmd *cobra.Command, set *manifest.Set, source *simulate.Source) (*config.Running, error) {
	now := source.AsOf.Time
	if now.IsZero() {
		now = set.Newest()
	}
	r, err := q.running(cmd, set.Leases, now)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(set.Nodes, func(n *v1.Node) bool { return n.UID != "" }) {
		q.assumed, q.stopped = "", nil
	}
	// A recording holds only the last renewals of Leases.
	if q.At != "" {
		q.stopped = nil
	}
	source.Assumed, source.Stopped = q.assumed, q.stopped
	return r, nil
}

// RunningIn returns the configuration running in a live cluster. Unless mayAssume, an assumption is
// an error: evicting a pod whose successor lands elsewhere achieves nothing.
func (q *Question) RunningIn(cmd *cobra.Command, client kubernetes.Interface, mayAssume bool) (*config.Running, error) {
	leases, err := lead.List(cmd.Context(), client.CoordinationV1())
	if err != nil && !snapshot.Optional(err) {
		return nil, connect.WithRemedy(err)
	}
	r, err := q.running(cmd, leases, time.Now())
	switch {
	case err != nil:
		return nil, err
	case r.Assumed != "" && !mayAssume:
		return nil, fmt.Errorf("no pod is evicted on an assumption (%s): name the scheduler's file with --config, or its "+
			"endpoints with --scheduler-url",
			strings.TrimSuffix(strings.TrimPrefix(r.Assumed, "Assumed: "), "."))
	}
	return r, nil
}

// NewClient connects to a cluster.
func NewClient(to *connect.Flags, userAgent string, tune ...func(*rest.Config)) (kubernetes.Interface, error) {
	cfg, err := to.Config(userAgent)
	if err != nil {
		return nil, err
	}
	for _, set := range tune {
		set(cfg)
	}
	return kubernetes.NewForConfig(cfg)
}

// LimitTime bounds the time of a request for one-shot queries, which must not hang on a kubeconfig
// that points nowhere.
func LimitTime(cfg *rest.Config) {
	if cfg.Timeout == 0 { // --request-timeout is not set
		cfg.Timeout = 5 * time.Second
	}
}

// RaiseRateLimit raises the rate limit for commands that make many requests; client-go's 5 a second
// would throttle them.
func RaiseRateLimit(cfg *rest.Config) { cfg.QPS, cfg.Burst = 50, 100 }
