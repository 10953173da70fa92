package main

import (
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

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/kube/lead"
)

// addressFile is where a scheduler leaves its URLs, next to its cluster's kubeconfig.
const addressFile = "scheduler.url"

// schedulerAnswersWithin bounds how long the scheduler may take to answer.
const schedulerAnswersWithin = 5 * time.Second

// schedulerAddress is how a command finds a scheduler to ask.
type schedulerAddress struct {
	url        string // of the flag
	connection *connection
	userAgent  string
}

// schedulerURL is the scheduler's URL, as the flag says or as the scheduler of berth up has left it
// in the data directory; "" if there is none. It is looked up every time: the scheduler may have
// been restarted.
func (s *schedulerAddress) schedulerURL() (string, error) {
	if s.url != "" {
		return s.url, nil
	}
	dir := connect.DataDirFromEnv()
	if file := s.connection.to.Kubeconfig; file != "" {
		dir = filepath.Dir(file)
	} else if file := os.Getenv("KUBECONFIG"); file != "" {
		dir = filepath.Dir(filepath.SplitList(file)[0])
	}
	return connect.FoundURL(filepath.Join(dir, addressFile))
}

// getDecision asks for the last decision about a pod; nil if the scheduler knows nothing of the
// pod, or there is none to ask.
func (s *schedulerAddress) getDecision(ctx context.Context, namespace, name string) (*decision.Decision, error) {
	text, at, err := s.getPath(ctx, decision.Path, namespace, name)
	if text == nil || err != nil {
		return nil, err
	}
	d := &decision.Decision{}
	if err := json.Unmarshal(text, d); err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	if d.Kind != decision.Kind {
		return nil, fmt.Errorf("%s: is no %s", at, decision.Kind)
	}
	return d, nil
}

// inUse asks for the configuration that the scheduler decides by; nil if there is none to ask, or
// it is of a version that does not tell. A scheduler that was found, not named, may be that of
// another cluster than a flag or the kubeconfig's context says.
func (s *schedulerAddress) inUse(ctx context.Context) (*config.InUse, error) {
	text, at, err := s.getPath(ctx, config.InUsePath)
	if text == nil || err != nil {
		return nil, err
	}
	told := config.ReadInUse(text)
	if told == nil {
		return nil, fmt.Errorf("%s: is no %s", at, config.InUseKind)
	}
	if cluster, err := s.connection.restConfig(s.userAgent); s.url == "" && (err != nil || cluster.Host != told.Server) {
		return nil, nil
	}
	return told, nil
}

// getPath returns what the scheduler has at a path; nil if it has nothing there.
func (s *schedulerAddress) getPath(ctx context.Context, path ...string) (text []byte, at string, err error) {
	where, err := s.schedulerURL()
	if where == "" || err != nil {
		return nil, "", err
	}

	ctx, cancel := context.WithTimeout(ctx, schedulerAnswersWithin)
	defer cancel()
	client, err := s.clientFor(where)
	if err != nil {
		return nil, "", err
	}
	if at, err = url.JoinPath(where, path...); err != nil {
		return nil, "", err
	}

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, "", err
	}

	response, err := client.Do(request)
	if err != nil {
		return nil, "", err
	}

	defer response.Body.Close()
	const longest = 4 << 20
	text, err = io.ReadAll(io.LimitReader(response.Body, longest))
	switch {
	case err != nil:
		return nil, "", err
	case response.StatusCode == http.StatusNotFound && (len(path) == 1 || strings.HasPrefix(string(text), "pod ")):
		return nil, at, nil
	case response.StatusCode != http.StatusOK:
		return nil, "", fmt.Errorf("%s: %s: %s", at, response.Status, strings.TrimSpace(firstLine(string(text))))
	}

	return text, at, nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// clientFor sends the kubeconfig's credentials only to a scheduler whose certificate the cluster's
// CA has signed.
func (s *schedulerAddress) clientFor(where string) (*http.Client, error) {
	to, err := url.Parse(where)
	if err != nil {
		return nil, err
	}

	switch to.Scheme {
	case "http":
		elsewhere := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		return &http.Client{CheckRedirect: elsewhere}, nil
	case "https":
		config, err := s.connection.restConfig(s.userAgent)
		if err != nil {
			return nil, err
		}
		if config.Insecure {
			return nil, errors.New("the kubeconfig does not verify servers (insecure-skip-tls-verify), so no " +
				"credentials are sent to " + where)
		}
		return rest.HTTPClientFor(config)
	}

	return nil, usagef("--scheduler-url %q: must begin with http:// or https://", where)
}

// addSchedulerFlags adds the flags that say by which configuration questions are answered.
func (q *question) addSchedulerFlags(flags *pflag.FlagSet) {
	flags.StringVar(&q.config, "config", "",
		"the scheduler's configuration file, as for kube-scheduler (default: that of the scheduler that runs)")
	flags.StringVar(&q.schedulerURL, "scheduler-url", "",
		"endpoints of the scheduler, as http://127.0.0.1:10251, to ask for its configuration and decisions (default: those of berth up)")
}

// schedulerToAsk is the one to ask. Of files nobody is asked, unless a flag says whom.
func (q *question) schedulerToAsk() *schedulerAddress {
	if len(q.files) > 0 && q.schedulerURL == "" || q.unanswered {
		return nil
	}
	return &schedulerAddress{q.schedulerURL, &q.connection, q.userAgent}
}

// noteSilent notes that the scheduler does not answer: it is not asked again for this answer. A
// failure is printed, and is no error: the engine needs no scheduler.
func (q *question) noteSilent(cmd *cobra.Command, err error) {
	q.unanswered = true
	printVisible(q.noticeWriter(cmd), "not asked: the scheduler: %v", err)
}

// readConfig reads the file that --config names, before anything else is read: a mistake in it is
// known at once.
func (q *question) readConfig(cmd *cobra.Command) (err error) {
	if q.config != "" {
		q.named, err = loadConfiguration(q.config, q.noticeWriter(cmd))
	}
	return err
}

// runningConfig is the configuration that the answer is by: the file that readConfig has read, or
// what the schedulers that run decide by: asked, or by what they have written on their Leases.
func (q *question) runningConfig(cmd *cobra.Command, leases []*coordinationv1.Lease, now time.Time) (*config.Running, error) {
	q.assumed, q.unanswered = "", false
	if q.config != "" {
		return &config.Running{Profiles: q.named.Profiles}, nil
	}

	var told *config.InUse
	if s := q.schedulerToAsk(); s != nil {
		var err error
		if told, err = s.inUse(cmd.Context()); err != nil {
			q.noteSilent(cmd, err)
		}
	}

	r, err := config.RunningOf(told, leases, now)
	if err != nil {
		return nil, err
	}

	q.assumed = r.Assumed
	return r, nil
}

// configFor is the configuration that questions about a set are answered by, and notes in its
// source what was assumed. Manifests that come from no cluster have no scheduler: nothing is
// assumed about it.
func (q *question) configFor(cmd *cobra.Command, set *manifest.Set, source *simulate.Source) (*config.Running, error) {
	now := source.AsOf.Time
	if now.IsZero() {
		now = set.Newest()
	}
	r, err := q.runningConfig(cmd, set.Leases, now)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(set.Nodes, func(n *v1.Node) bool { return n.UID != "" }) {
		q.assumed = ""
	}
	source.Assumed = q.assumed
	return r, nil
}

// writeOpening writes the first line of an answer for people: what was assumed, if anything was.
func (q *question) writeOpening(out io.Writer) error {
	if q.assumed == "" || q.output != "" && q.output != "wide" {
		return nil
	}
	page := answer.NewPage(out)
	page.Warning("%s", q.assumed)
	return page.Flush()
}

// provingConfig is the configuration that moves are proved by before pods are evicted for them. It
// is not assumed: a successor that lands elsewhere is an eviction for nothing.
func (q *question) provingConfig(cmd *cobra.Command, client kubernetes.Interface) (*config.Running, error) {
	leases, err := lead.List(cmd.Context(), client.CoordinationV1())
	if err != nil && !snapshot.Optional(err) {
		return nil, connect.Reach(err)
	}
	r, err := q.runningConfig(cmd, leases, time.Now())
	if err == nil && r.Assumed != "" {
		err = fmt.Errorf("no pod is evicted on an assumption (%s): name the scheduler's file with --config, or its "+
			"endpoints with --scheduler-url",
			strings.TrimSuffix(strings.TrimPrefix(r.Assumed, "Assumed: "), "."))
	}
	return r, err
}
