// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package query

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
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
	"github.com/berth-k8s/berth/internal/usage"
)

// AddressFile is the file in which a scheduler publishes its URLs, next to its cluster's
// kubeconfig.
const AddressFile = "scheduler.url"

// schedulerAnswersWithin bounds the time until the scheduler responds.
const schedulerAnswersWithin = 5 * time.Second

// Scheduler locates and queries a scheduler.
type Scheduler struct {
	URL       string // URL set by the flag
	Cluster   *connect.Flags
	UserAgent string
}

// find returns the scheduler's URL, from the flag or from the data directory, where the scheduler
// of berth up publishes it; "" if neither exists. It looks the URL up every time, because the
// scheduler may have been restarted.
func (s *Scheduler) find() (string, error) {
	if s.URL != "" {
		return s.URL, nil
	}
	dir, files := connect.DataDirFromEnv(), filepath.SplitList(os.Getenv("KUBECONFIG"))
	if file := s.Cluster.Kubeconfig; file != "" {
		dir = filepath.Dir(file)
	} else if i := slices.IndexFunc(files, func(file string) bool { return file != "" }); i >= 0 {
		dir = filepath.Dir(files[i])
	}
	return connect.FoundURL(filepath.Join(dir, AddressFile))
}

// Decision requests the last decision about a pod. It returns nil without a scheduler, or if the
// pod is unknown to it.
func (s *Scheduler) Decision(ctx context.Context, namespace, name string) (*decision.Decision, error) {
	text, at, err := s.get(ctx, decision.Path, namespace, name)
	if text == nil || err != nil {
		return nil, err
	}
	d := &decision.Decision{}
	if err := json.Unmarshal(text, d); err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	if d.Kind != decision.Kind {
		return nil, fmt.Errorf("%s: not a %s", at, decision.Kind)
	}
	return d, nil
}

// InUse requests the scheduler's configuration in use. It returns nil without a scheduler, or if
// the scheduler's version does not report its configuration. It also returns nil if a scheduler
// that was found, rather than named by the flag, belongs to a different cluster than the selected
// one.
func (s *Scheduler) InUse(ctx context.Context) (*config.InUse, error) {
	text, at, err := s.get(ctx, config.InUsePath)
	if text == nil || err != nil {
		return nil, err
	}
	inUse := config.ReadInUse(text)
	if inUse == nil {
		return nil, fmt.Errorf("%s: not a %s", at, config.InUseKind)
	}
	if cluster, err := s.Cluster.Config(s.UserAgent); s.URL == "" && (err != nil || cluster.Host != inUse.Server) {
		return nil, nil
	}
	return inUse, nil
}

// get returns the scheduler's document at a path, or nil if it does not exist.
func (s *Scheduler) get(ctx context.Context, path ...string) (text []byte, at string, err error) {
	where, err := s.find()
	if where == "" || err != nil {
		return nil, "", err
	}
	client, err := s.clientFor(where)
	if err != nil {
		return nil, "", err
	}
	to, err := url.Parse(where)
	if err != nil {
		return nil, "", err
	}
	to.User = nil // keep the password out of errors
	at = to.JoinPath(path...).String()

	response, text, err := Fetch(ctx, client, at, schedulerAnswersWithin)
	switch {
	case err != nil:
		return nil, "", err
	case response.StatusCode == http.StatusNotFound && (len(path) == 1 || strings.HasPrefix(string(text), "pod ")):
		return nil, at, nil
	case response.StatusCode != http.StatusOK:
		line, _, _ := strings.Cut(string(text), "\n")
		said := strings.TrimSuffix(response.Status+": "+strings.TrimSpace(line), ": ")
		return nil, "", fmt.Errorf("%s: %s", at, said)
	}
	return text, at, nil
}

// longest limits the bytes read from an address. A report or a decision is a few kilobytes.
const longest = 16 << 20

// Fetch reads the document at an address.
func Fetch(ctx context.Context, client *http.Client, at string, within time.Duration) (*http.Response, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, longest))
	return response, text, err
}

// clientFor returns a client for an address. The client sends the kubeconfig's credentials only to
// a scheduler with a certificate signed by the cluster's CA, and does not follow redirects.
func (s *Scheduler) clientFor(where string) (client *http.Client, err error) {
	to, err := parseURL(where)
	if err != nil {
		return nil, err
	}

	client = &http.Client{}
	if to.Scheme == "https" {
		config, err := s.Cluster.Config(s.UserAgent)
		if err != nil {
			return nil, err
		}
		if config.Insecure {
			return nil, errors.New("the kubeconfig does not verify servers (insecure-skip-tls-verify), so no " +
				"credentials are sent to " + where)
		}
		if client, err = rest.HTTPClientFor(config); err != nil {
			return nil, err
		}
	}

	own := *client // client may be [http.DefaultClient]
	if password, ok := to.User.Password(); ok {
		own.Transport = withPassword{cmp.Or[http.RoundTripper](own.Transport, http.DefaultTransport), password}
	}
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &own, nil
}

// withPassword sends the password published with a scheduler's address.
type withPassword struct {
	http.RoundTripper
	password string
}

func (t withPassword) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.SetBasicAuth("berth", t.password)
	return t.RoundTripper.RoundTrip(r)
}

// parseURL parses an address of --scheduler-url.
func parseURL(where string) (*url.URL, error) {
	to, err := url.Parse(where)
	if err != nil || to.Host == "" || to.Scheme != "http" && to.Scheme != "https" {
		return nil, usage.Errorf("--scheduler-url %q: must begin with http:// or https://, and name a host", where)
	}
	return to, nil
}

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
	cfg.Timeout = cmp.Or(cfg.Timeout, 5*time.Second) // 0 if --request-timeout is not set
}

// RaiseRateLimit raises the rate limit for commands that make many requests; client-go's 5 a second
// would throttle them.
func RaiseRateLimit(cfg *rest.Config) { cfg.QPS, cfg.Burst = 50, 100 }
