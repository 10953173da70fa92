package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/record"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/snapshot"
)

// question is what the commands that ask about a cluster have in common: where its state comes from
// and how the answer is written.
type question struct {
	files      []string
	recursive  bool
	strict     bool
	config     string
	seed       uint64
	at         string
	gates      map[string]bool
	output     string
	connection connection
	userAgent  string
	work       work
	noticed    once
	unseen     bool // nothing is asked about pods before they are tried

	named        *config.Config // by --config
	schedulerURL string
	unanswered   bool   // the scheduler did not answer
	assumed      string // about its configuration
}

// noticeWriter is where what is worth knowing beside the answer is written: once, however often the
// question is asked with --watch.
func (q *question) noticeWriter(cmd *cobra.Command) io.Writer {
	q.noticed.to = cmd.ErrOrStderr()
	return &q.noticed
}

// once writes each text that it is given a single time.
type once struct {
	to   io.Writer
	said []string
}

func (o *once) Write(text []byte) (int, error) {
	if slices.Contains(o.said, string(text)) {
		return len(text), nil
	}
	o.said = append(o.said, string(text))
	return o.to.Write(text)
}

func (q *question) addFlags(flags *pflag.FlagSet) {
	addFiles(flags, &q.files, "ask about the cluster in these manifests or recordings instead of a live one: files, "+
		"folders, or - (repeatable)",
		"as -f, with what the kustomization in this folder makes (repeatable)")
	addFetch(flags)
	flags.BoolVarP(&q.recursive, "recursive", "R", false, "read subfolders, too")
	flags.BoolVar(&q.strict, "strict", false, "with -f, refuse pods that are bound to a node that the manifests do not have")
	flags.StringVar(&q.at, "at", "", "of a recording, the time to ask about: as 2026-11-20T10:00:00Z, or -5m before its end")
	q.addSchedulerFlags(flags)
	flags.Uint64Var(&q.seed, "seed", 1, "breaks ties between nodes that are equally good")
	addGates(flags, &q.gates)
	flags.StringVarP(&q.output, "output", "o", "", formatsUsage(formats))
	q.connection.addFlags(flags)
	q.connection.to.AddKubectlFlags(flags)
}

// readWorld reads the state: from files, or from a live cluster, which is only read.
func (q *question) readWorld(cmd *cobra.Command) (*simulate.World, simulate.Source, error) {
	if err := checkGates(q.gates); err != nil {
		return nil, simulate.Source{}, err
	}
	makeHeapRoom()
	if err := q.readConfig(cmd); err != nil {
		return nil, simulate.Source{}, err
	}

	set, source, err := q.readSet(cmd)
	if err != nil {
		return nil, source, err
	}

	running, err := q.configFor(cmd, set, &source)
	if err != nil {
		return nil, source, err
	}

	options := simulate.Options{Profiles: running.Profiles, Seed: q.seed, Gates: q.gates, Read: fileReader(cmd),
		Now: source.AsOf.Time, Unseen: q.unseen}
	if len(q.gates) == 0 && running.Groups != nil {
		options.Gates = running.Groups.Named()
	}

	q.work.beginStep(cmd.ErrOrStderr(), "taking in the cluster")
	w, err := simulate.Open(set, options)
	q.work.clearLine()
	if err != nil {
		return nil, source, err
	}

	if source.AsOf.IsZero() {
		source.AsOf = metav1.NewTime(w.Now())
	}
	return w, source, nil
}

// readSet reads the objects. Those of manifests are of no known time, those of a recording of its
// end.
func (q *question) readSet(cmd *cobra.Command) (set *manifest.Set, source simulate.Source, err error) {
	meter := q.work.beginStep(cmd.ErrOrStderr(), "reading")
	defer q.work.clearLine()
	switch {
	case len(q.files) == 0 && q.strict:
		return nil, source, usagef("--strict: goes with -f")
	case len(q.files) == 0 && q.recursive:
		return nil, source, usagef("--recursive: goes with -f")
	case q.at != "":
		var at time.Time
		if set, at, err = q.readRecording(cmd); err != nil {
			return nil, source, err
		}
		return set, simulate.Source{From: q.files[0], AsOf: metav1.NewTime(at)}, nil
	case len(q.files) > 0:
		if set, err = readManifests(q.files, manifest.Options{Recursive: q.recursive, Lenient: hasRecording(q.files),
			Strict: q.strict}, cmd); err != nil {
			return nil, source, err
		}
		if _, set.JobGroups, err = simulate.Gates(q.gates, set); err != nil {
			return nil, source, err
		}
		set.Expand(int64(q.seed))
		q.work.clearLine()
		tellIgnored(cmd.ErrOrStderr(), set)
		source.From = strings.Join(q.files, ", ")
		source.AsOf, err = endOf(q.files)
		return set, source, err
	}

	s, err := q.readLive(cmd.Context(), meter)
	if err != nil {
		return nil, source, err
	}

	q.work.clearLine()
	tellMissing(q.noticeWriter(cmd), s.Missing)
	return s.Set, s.Source, nil
}

// tellMissing names the kinds that could not be read, of a cluster or for its recording.
func tellMissing(stderr io.Writer, kinds []string) {
	for _, kind := range kinds {
		printVisible(stderr, "not read: %s", kind)
	}
}

func (q *question) readLive(ctx context.Context, meter *meter) (*snapshot.Snapshot, error) {
	cfg, err := q.connection.restConfig(q.userAgent)
	if err != nil {
		return nil, err
	}
	client, err := snapshot.NewClient(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	return client.Read(ctx, func(objects int) { meter.setWords(fmt.Sprintf("%d objects read", objects)) })
}

// readRecording reads a recording as of the time that was asked for.
func (q *question) readRecording(cmd *cobra.Command) (*manifest.Set, time.Time, error) {
	if len(q.files) != 1 || !hasRecording(q.files) {
		return nil, time.Time{}, usagef("--at %s: needs one recording, with -f DIR", q.at)
	}
	index, err := record.ReadIndex(q.files[0])
	if err != nil {
		return nil, time.Time{}, err
	}
	at, err := time.Parse(time.RFC3339, q.at)
	if before, notDuration := time.ParseDuration(q.at); notDuration == nil && before <= 0 {
		at, err = index.Source.AsOf.Add(before), nil
	}
	if err != nil {
		return nil, time.Time{}, usagef("--at %q: must be a time as 2026-11-20T10:00:00Z, or one before the end as -5m", q.at)
	}
	set, err := record.At(q.files[0], at)
	if err == nil {
		tellMissing(q.noticeWriter(cmd), index.MissingAt(at))
	}
	return set, at, err
}

// readWithin bounds how long a cluster may take to answer.
const readWithin = 2 * time.Minute

// addGates adds the flag with the features of pod groups that are on.
func addGates(flags *pflag.FlagSet, gates *map[string]bool) {
	flags.Var(cliflag.NewMapStringBool(gates), "feature-gates",
		"features of pod groups, as Gate=true|false with commas between (default: those that "+
			"the objects make use of): "+strings.Join(simulate.GateNames, ", "))
}

// checkGates refuses gates that have no effect, and those that lack another one.
func checkGates(gates map[string]bool) error {
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		if !slices.Contains(simulate.GateNames, name) {
			return usagef("--feature-gates %q: must be one of %s", name, strings.Join(simulate.GateNames, ", "))
		}
	}
	if _, _, err := simulate.Gates(gates, &manifest.Set{}); err != nil {
		return usagef("%w", err)
	}
	return nil
}

// fileReader reads what is applied in a scenario or a what-if.
func fileReader(cmd *cobra.Command) func(files []string) (*manifest.Set, error) {
	return func(files []string) (*manifest.Set, error) { return readManifests(files, manifest.Options{}, cmd) }
}

// loadConfiguration reads the scheduler's configuration file. Tolerations with Gt and Lt count: an
// API server whose feature gate is off stores none.
func loadConfiguration(path string, stderr io.Writer) (*config.Config, error) {
	options := config.Options{CompareTolerations: true}
	if path == "" {
		return config.Default(options)
	}
	c, err := config.Load(path, options)
	if err != nil {
		return nil, err
	}
	for _, note := range c.Notes {
		printVisible(stderr, "%s: %s", path, note)
	}
	return c, nil
}

// hasRecording tells whether one of the paths is a recording: what was taken from a cluster is read
// as it is.
func hasRecording(files []string) bool { return slices.ContainsFunc(files, isRecording) }

// endOf returns the end of the recording among the paths; zero if there is none.
func endOf(files []string) (metav1.Time, error) {
	i := slices.IndexFunc(files, isRecording)
	if i < 0 {
		return metav1.Time{}, nil
	}
	index, err := record.ReadIndex(files[i])
	if err != nil {
		return metav1.Time{}, err
	}
	return index.Source.AsOf, nil
}

func isRecording(path string) bool {
	_, err := os.Stat(filepath.Join(path, record.IndexFile))
	return err == nil
}

// formats are those of the answers about a cluster.
var formats = append(slices.Clone(answer.Formats), "name", "wide")

// checkFormat checks --output.
func checkFormat(output string, allowed []string) error {
	if err := answer.Check(output, allowed...); err != nil {
		return usagef("--output %w", err)
	}
	return nil
}

// formatsUsage is the text of a flag --output.
func formatsUsage(allowed []string) string { return answer.Choice(allowed) + "; by default a table" }

// formatChoices are the formats as they are typed.
func formatChoices(allowed []string) []string {
	words := slices.Clone(allowed)
	for i, word := range words {
		if word == answer.JSONPath {
			words[i] = word + "="
		}
	}
	return words
}

// splitName splits pod/NAME; a name alone is of the kind that is expected.
func splitName(arg string, kinds ...string) (name string, err error) {
	kind, name, ok := strings.Cut(arg, "/")
	switch {
	case !ok && arg != "":
		return arg, nil
	case name == "" || !slices.Contains(kinds, strings.ToLower(kind)):
		return "", usagef("%q: must be %s/NAME", arg, kinds[0])
	}
	return name, nil
}

var (
	podWords  = []string{"pod", "pods", "po"}
	nodeWords = []string{"node", "nodes", "no"}
)

// namespace is the one that is meant: the flag's, else the context's, else the default.
func (q *question) namespaceOr(flag string) string {
	if flag != "" || len(q.files) > 0 {
		return cmp.Or(flag, metav1.NamespaceDefault)
	}
	return q.connection.to.Namespace()
}
