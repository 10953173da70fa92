// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package query

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/berth-k8s/berth/internal/admission/evictionguard"
	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/record"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/usage"
)

// Question holds the flags of a command that queries a cluster.
type Question struct {
	UserAgent string
	Files     []string // manifests and recordings; if empty, the live cluster is read
	Strict    bool
	Config    string // file of --config
	At        string
	Gates     map[string]bool
	Output    string
	Cluster   connect.Flags
	Unseen    bool // pods are not looked up before they are tried
	// DropManagedFields drops the managed fields of nodes, which state when taints were written.
	DropManagedFields bool
	ForPlans          bool // also read the kinds that only plans of nodes use
	// Applied is the namespace of applied objects without one; by default, "default".
	Applied string
	Meter   print.Meter

	recursive bool
	seed      uint64
	watch     bool
	every     time.Duration
	noticed   print.Once

	named        *config.Config // configuration of --config
	schedulerURL string
	// schedulerLeases are trusted to announce the scheduler's configuration; see lead.Trusted.
	schedulerLeases []string
	unanswered      bool   // the scheduler did not respond
	assumed         string // assumption about the scheduler's configuration
	stopped         []config.Stopped
}

// AddFlags adds the flags common to all queries.
func (q *Question) AddFlags(flags *pflag.FlagSet) {
	q.AddFileFlags(flags, "ask about the cluster in these manifests or recordings instead of a live one: files, "+
		"folders, or - (repeatable)",
		"as -f, with what the kustomization in this folder makes (repeatable)")
	flags.BoolVar(&q.Strict, "strict", false, "with -f, refuse pods that are bound to a node that the manifests do not have")
	flags.StringVar(&q.At, "at", "", "of a recording, the time to query, such as 2026-11-20T10:00:00Z, or -5m before its end")
	q.AddSchedulerFlags(flags)
	flags.StringVarP(&q.Output, "output", "o", "", print.FormatsUsage(print.Formats))
	q.Cluster.AddKubectlFlags(flags)
}

// AddFileFlags adds the flags that select and interpret manifests.
func (q *Question) AddFileFlags(flags *pflag.FlagSet, file, folder string) {
	parse.AddFiles(flags, &q.Files, file, folder)
	flags.Bool(fetchFlag, false, "with -k, fetch the kustomization's remote resources, over HTTP and with git, from hosts that the "+
		"folder names")
	flags.BoolVarP(&q.recursive, "recursive", "R", false, "also read subfolders")
	flags.Uint64Var(&q.seed, "seed", 1, "seed that breaks ties between equally good nodes")
	flags.Var(cliflag.NewMapStringBool(&q.Gates), "feature-gates",
		"features of pod groups, as Gate=true|false with commas between (default: the gates "+
			"required by the objects): "+strings.Join(simulate.GateNames, ", "))
}

// Prepare checks the gates and the scheduler's address and reads the scheduler's configuration
// before any other input, so that mistakes in them are reported immediately.
func (q *Question) Prepare(cmd *cobra.Command) (err error) {
	for _, name := range slices.Sorted(maps.Keys(q.Gates)) {
		if !slices.Contains(simulate.GateNames, name) {
			return usage.Errorf("--feature-gates %q: must be one of %s", name, strings.Join(simulate.GateNames, ", "))
		}
	}
	if _, _, err := simulate.Gates(q.Gates, &manifest.Set{}); err != nil {
		return usage.Of(err)
	}
	if q.schedulerURL != "" {
		if _, err := parseURL(q.schedulerURL); err != nil {
			return err
		}
	}
	if q.Config != "" {
		q.named, err = LoadConfiguration(q.Config, q.notices(cmd))
	}
	return err
}

// gcPercent is the growth of a command's heap between collections. At 200 percent, a simulation of
// 60,000 pods takes a tenth less processor time than at Go's default, and a tenth more memory.
const gcPercent = 200

// ReadWorld reads the state: from files, or from a live cluster, which is only read.
func (q *Question) ReadWorld(cmd *cobra.Command) (*simulate.World, simulate.Source, error) {
	if err := q.Prepare(cmd); err != nil {
		return nil, simulate.Source{}, err
	}
	set, source, err := q.ReadSet(cmd)
	if err != nil {
		return nil, source, err
	}
	options, err := q.Options(cmd, set, &source)
	if err != nil {
		return nil, source, err
	}

	q.Meter.Begin(cmd.ErrOrStderr(), "loading the cluster")
	w, err := simulate.Open(set, *options)
	q.Meter.Clear()
	if err != nil {
		return nil, source, err
	}
	if source.AsOf.IsZero() {
		source.AsOf = metav1.NewTime(w.Now())
	}
	return w, source, nil
}

// ReadSet reads the objects. Objects from manifests have no known time; objects from a recording
// have the time of its end.
func (q *Question) ReadSet(cmd *cobra.Command) (set *manifest.Set, source simulate.Source, err error) {
	if os.Getenv("GOGC") == "" {
		switch debug.SetGCPercent(gcPercent); {
		case q.ForPlans: // whose worlds follow each other: a fifth less memory for a tenth more time
			debug.SetGCPercent(gcPercent / 4)
		case q.DropManagedFields: // plans of moves, whose worlds follow each other as well
			debug.SetGCPercent(gcPercent / 2)
		}
	}
	q.Meter.Begin(cmd.ErrOrStderr(), "reading")
	defer q.Meter.Clear()
	switch {
	case len(q.Files) == 0 && q.Strict:
		return nil, source, usage.Errorf("--strict: requires -f")
	case len(q.Files) == 0 && q.recursive:
		return nil, source, usage.Errorf("--recursive: requires -f")
	case q.At != "":
		return q.readRecording(cmd)
	case len(q.Files) > 0:
		if set, source, err = q.ReadFiles(cmd); err != nil {
			return nil, source, err
		}
		if _, set.JobGroups, err = simulate.Gates(q.Gates, set); err != nil {
			return nil, source, err
		}
		set.Expand(int64(q.seed))
		if q.ForPlans {
			maps.DeleteFunc(set.Ignored, func(kind string, _ int) bool { return manifest.PlanKinds[kind] != "" })
		}
		q.Meter.Clear()
		PrintIgnored(cmd.ErrOrStderr(), set)
		return set, source, nil
	}

	s, err := q.readLive(cmd.Context())
	if err != nil {
		return nil, source, err
	}
	q.Meter.Clear()
	printMissing(q.notices(cmd), s.Missing)
	return s.Set, s.Source, nil
}

// readWithin bounds the time until a cluster responds.
const readWithin = 2 * time.Minute

func (q *Question) readingClient() (*snapshot.Client, error) {
	cfg, err := q.Cluster.Config(q.UserAgent)
	if err != nil {
		return nil, err
	}
	client, err := snapshot.NewClient(cfg)
	if err != nil {
		return nil, err
	}
	client.DropManagedFields, client.ForPlans = q.DropManagedFields, q.ForPlans
	return client, nil
}

// StatusOf describes a pod of the live cluster from its own status; see [snapshot.Client.StatusOf].
func (q *Question) StatusOf(ctx context.Context, namespace, name string) string {
	client, err := q.readingClient()
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	return client.StatusOf(ctx, namespace, name)
}

// StatusesOf describes the pending pods of a namespace; see [snapshot.Client.StatusesOf].
func (q *Question) StatusesOf(ctx context.Context, namespace string) []string {
	client, err := q.readingClient()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	return client.StatusesOf(ctx, namespace)
}

// GuardsEvictions reports whether the live cluster has Berth's eviction guard. It returns false
// without permission to read webhook configurations.
func (q *Question) GuardsEvictions(ctx context.Context) bool {
	config, err := q.Cluster.Config(q.UserAgent)
	if err != nil || len(q.Files) > 0 || q.At != "" {
		return false
	}
	client, err := kubernetes.NewForConfig(snapshot.ReadOnly(config))
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	list, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	return err == nil && slices.ContainsFunc(list.Items, func(c admissionv1.ValidatingWebhookConfiguration) bool {
		return slices.ContainsFunc(c.Webhooks, func(w admissionv1.ValidatingWebhook) bool { return w.Name == evictionguard.WebhookName })
	})
}

func (q *Question) readLive(ctx context.Context) (*snapshot.Snapshot, error) {
	client, err := q.readingClient()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	return client.Read(ctx, func(objects int) { q.Meter.Words(fmt.Sprintf("%d objects read", objects)) })
}

// Options returns the options of a simulation of the set, and notes the assumptions in its source.
func (q *Question) Options(cmd *cobra.Command, set *manifest.Set, source *simulate.Source) (*simulate.Options, error) {
	running, err := q.configFor(cmd, set, source)
	if err != nil {
		return nil, err
	}
	options := simulate.Options{Profiles: running.Profiles, Seed: q.seed, Gates: q.Gates, Now: source.AsOf.Time, Unseen: q.Unseen}
	options.Read = func(files []string, over *manifest.Set) (*manifest.Set, error) {
		applied, err := readManifests(cmd, files, manifest.Options{Over: over, Namespace: q.Applied})
		if err == nil && slices.ContainsFunc(q.Files, isRecording) {
			for _, object := range applied.Objects() {
				record.Slim(object) // match the form of recorded objects
			}
		}
		return applied, err
	}
	if len(q.Gates) == 0 {
		options.Gates = running.Groups.Named()
	}
	return &options, nil
}

// NamespaceOr returns the namespace: the flag's, else the context's, else the default.
func (q *Question) NamespaceOr(flag string) string {
	if flag != "" || len(q.Files) > 0 {
		return cmp.Or(flag, metav1.NamespaceDefault)
	}
	return q.Cluster.Namespace()
}

// notices receives notes that accompany the result, each written once even with --watch.
func (q *Question) notices(cmd *cobra.Command) io.Writer {
	q.noticed.Out = cmd.ErrOrStderr()
	return &q.noticed
}

// WriteOpening writes the first lines of a human-readable result: the stopped schedulers and the
// assumptions, if any.
func (q *Question) WriteOpening(cmd *cobra.Command) error {
	if q.Output != "" && q.Output != "wide" {
		return nil
	}
	page := answer.NewPage(cmd.OutOrStdout())
	for i := range q.stopped {
		page.Warning("N%s. The answer below applies once one is running.", q.stopped[i].String()[1:])
	}
	if q.assumed != "" {
		page.Warning("%s", q.assumed)
	}
	return page.Flush()
}
