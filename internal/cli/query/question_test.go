// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package query

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/record"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/inspect/snapshot/apitest"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
	"github.com/berth-k8s/berth/internal/usage"
)

var now = time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)

// asked is a query with parsed flags.
type asked struct {
	Question
	cmd       *cobra.Command
	out, errs bytes.Buffer
	wrong     error // error in the flags
}

func newQuestion(args ...string) *asked {
	q := &asked{cmd: &cobra.Command{Use: "look"}}
	q.AddFlags(q.cmd.Flags())
	q.AddWatchFlags(q.cmd.Flags())
	q.cmd.SetContext(context.Background())
	q.cmd.SetOut(&q.out)
	q.cmd.SetErr(&q.errs)
	q.cmd.SetIn(strings.NewReader(node("of-stdin")))
	q.wrong = q.cmd.ParseFlags(args)
	return q
}

func node(name string) string {
	return "---\napiVersion: v1\nkind: Node\nmetadata: {name: " + name + "}\nstatus: {allocatable: {cpu: \"2\", memory: 4Gi, pods: \"110\"}}\n"
}

func pod(name, on string) string {
	return "---\napiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec: {nodeName: " + on + ", containers: [{name: c, image: i}]}\n"
}

// names returns the names of the queried nodes.
func (q *asked) names() (names []string, source simulate.Source, err error) {
	set, source, err := q.ReadSet(q.cmd)
	if err != nil {
		return nil, source, err
	}
	for _, n := range set.Nodes {
		names = append(names, n.Name)
	}
	return names, source, nil
}

type document struct{ fingerprint string }

func (d document) Fingerprint() string { return d.fingerprint }
func (d document) Write(out io.Writer, format string) error {
	_, err := out.Write([]byte(d.fingerprint + format + "\n"))
	return err
}

// TestWrongQuestionsAreRefused verifies that invalid queries are reported before any input is read,
// with the flag and the allowed values.
func TestWrongQuestionsAreRefused(t *testing.T) {
	nowhere(t)
	file := write(t, "a.yaml", node("a"))
	for args, want := range map[string]string{
		"--watch -f a.yaml":         "--watch: cannot be used with -f: files do not change",
		"--every 999ms":             "--every 999ms: must be 1s or more",
		"--every 0":                 "--every 0s: must be 1s or more",
		"-o toml -f a.yaml":         `--output "toml": must be`,
		"--strict":                  "--strict: requires -f",
		"-R":                        "--recursive: requires -f",
		"--at -5m":                  "--at -5m: needs one recording, with -f DIR",
		"--at -5m -f a.yaml":        "--at -5m: needs one recording, with -f DIR",
		"--feature-gates Nope=true": `--feature-gates "Nope": must be one of GenericWorkload`,
		"--feature-gates GangScheduling=true,GenericWorkload=false -f a.yaml": "GenericWorkload",
		"--scheduler-url localhost:1 -f a.yaml":                               `--scheduler-url "localhost:1": must begin with http:// or https://`,
	} {
		q := newQuestion(strings.Fields(args)...)
		if q.wrong != nil {
			t.Fatal(q.wrong)
		}
		err := q.Ask(q.cmd, func(*simulate.World, simulate.Source) (*Answer, error) {
			t.Errorf("%s: it is answered", args)
			return nil, errors.New("answered")
		})
		if err == nil || !strings.Contains(err.Error(), want) || !usage.IsError(err) {
			t.Errorf("%s: %v, want a usage error with %q", args, err, want)
		}
	}
	for args, want := range map[string]string{
		"-f none.yaml":                    "none.yaml",
		"-f a.yaml -f a.yaml":             "there is a Node of this name at a.yaml:2",
		"-k none":                         "-k none: there is no such folder",
		"-k .":                            "-k .: the folder has no kustomization.yaml or ",
		"--config none.yaml":              "none.yaml",
		"-f " + file + " --config a.yaml": "a.yaml",
	} {
		q := newQuestion(strings.Fields(args)...)
		if _, _, err := q.ReadWorld(q.cmd); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// TestFilesFoldersAndTheStandardInput verifies that files, folders and the standard input may be
// combined; nested folders require -R.
func TestFilesFoldersAndTheStandardInput(t *testing.T) {
	nowhere(t)
	write(t, "a.yaml", node("a"))
	write(t, "dir/b.yaml", node("b"))
	write(t, "dir/deeper/c.yaml", node("c"))
	write(t, "base/kustomization.yaml", "resources: [d.yaml]\nnamePrefix: made-\n")
	write(t, "base/d.yaml", node("d"))
	for args, want := range map[string]string{
		"-f a.yaml":                     "a",
		"-f -":                          "of-stdin",
		"-f dir":                        "b",
		"-f dir -R":                     "b,c",
		"-k base":                       "made-d",
		"-f a.yaml -k base -f - -f dir": "a,made-d,of-stdin,b",
	} {
		q := newQuestion(strings.Fields(args)...)
		names, source, err := q.names()
		if got := strings.Join(names, ","); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", args, got, err, want)
		}
		if !source.AsOf.IsZero() || source.From != strings.Join(q.Files, ", ") {
			t.Errorf("%s: %+v", args, source)
		}
	}
}

// TestEachWrongObjectIsTold verifies that all errors in files are returned, with one line per
// error.
func TestEachWrongObjectIsTold(t *testing.T) {
	nowhere(t)
	write(t, "bad.yaml", node("a")+"---\napiVersion: v1\nkind: Pod\nmetadata: {name: \"A\\eB\"}\n"+pod("x", "a")+"---\napiVersion: v1\nkind: Node\nmetadata: {name: B}\n")
	q := newQuestion("-f", "bad.yaml")
	_, _, err := q.names()
	list, _ := err.(manifest.Errors)
	if len(list) != 2 || list[0].File != "bad.yaml" || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("%v", err)
	}
}

// TestWhatIsNotUsedIsTold verifies that ignored inputs are reported, and that --strict rejects pods
// on missing nodes.
func TestWhatIsNotUsedIsTold(t *testing.T) {
	nowhere(t)
	write(t, "a.yaml", node("a")+pod("x", "gone")+pod("z", "a")+"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\n")
	q := newQuestion("-f", "a.yaml")
	if _, _, err := q.names(); err != nil || !strings.Contains(q.errs.String(), "(--strict refuses them): 1 pod on gone\n") || !strings.Contains(q.errs.String(), "not used: 1 ConfigMap\n") {
		t.Errorf("%q, %v", q.errs.String(), err)
	}
	q = newQuestion("-f", "a.yaml", "--strict")
	if _, _, err := q.names(); err == nil || !strings.Contains(err.Error(), "gone") {
		t.Errorf("--strict: %v", err)
	}
}

// TestRecordingsAreReadAsOfATime verifies that a recording is read as of the time in --at, or as of
// its end by default.
func TestRecordingsAreReadAsOfATime(t *testing.T) {
	nowhere(t)
	api := apitest.New(t)
	api.Refuse("poddisruptionbudgets", http.StatusForbidden)
	api.Set("nodes", apitest.Object{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "a"}})
	client, err := snapshot.NewClient(api.Config)
	if err != nil {
		t.Fatal(err)
	}
	if err := record.Run(t.Context(), client, record.Options{Dir: "tape", Once: true}); err != nil {
		t.Fatal(err)
	}
	index, err := record.ReadIndex("tape")
	if err != nil {
		t.Fatal(err)
	}

	end := index.Source.AsOf.UTC()
	for args, want := range map[string]time.Time{"": end, "--at -0s": end, "--at " + end.Format(time.RFC3339): end} {
		q := newQuestion(append(strings.Fields(args), "-f", "tape")...)
		names, source, err := q.names()
		if err != nil || !slices.Equal(names, []string{"a"}) || !source.AsOf.Time.Equal(want) || source.From != "tape" {
			t.Errorf("%q: %v, %+v, %v, want %v", args, names, source, err, want)
		}
		if text := q.errs.String(); strings.Count(text, "not read: poddisruptionbudgets") != 1 {
			t.Errorf("%q: %q", args, text)
		}
	}
	for args, want := range map[string]string{
		"--at yesterday -f tape":   `--at "yesterday": must be a time such as 2026-11-20T10:00:00Z, or an offset from the end such as -5m`,
		"--at 5m -f tape":          `--at "5m": must be a time`,
		"--at 2026-11-20 -f tape":  `--at "2026-11-20": must be a time`,
		"--at -24h -f tape":        "nothing was recorded at ",
		"--at -1m -f tape -f tape": "--at -1m: needs one recording",
		"-R -f tape":               "--recursive: cannot be used with the recording tape, whose subfolders are its history",
	} {
		q := newQuestion(strings.Fields(args)...)
		if _, _, err := q.names(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// TestALiveClusterIsRead verifies that a live cluster not serving some kind can be queried, with a
// single notice about the missing kind.
func TestALiveClusterIsRead(t *testing.T) {
	nowhere(t)
	api := apitest.New(t)
	api.Refuse("poddisruptionbudgets", http.StatusForbidden)
	api.Set("nodes", apitest.Object{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "a", "uid": "a"}})
	q := newQuestion("--kubeconfig", kubeconfig(t, t.TempDir(), api.Config.Host, ""), "-o", "name")
	for range 2 {
		err := q.Ask(q.cmd, func(w *simulate.World, source simulate.Source) (*Answer, error) {
			if source.From != "" && source.AsOf.IsZero() || !strings.HasPrefix(source.Assumed, "Assumed: ") {
				t.Errorf("%+v", source)
			}
			return &Answer{Document: document{"fine "}, Held: print.HeldError(errors.New("held"))}, nil
		})
		if !print.IsHeld(err) {
			t.Errorf("%v", err)
		}
	}
	if q.out.String() != "fine name\nfine name\n" || strings.Count(q.errs.String(), "not read: ") != 1 {
		t.Errorf("%q %q", q.out.String(), q.errs.String())
	}

	api.Refuse("pods", http.StatusForbidden)
	if _, _, err := q.names(); err == nil || !strings.Contains(err.Error(), "pods") {
		t.Errorf("no answer is without pods: %v", err)
	}
	q = newQuestion("--kubeconfig", "none")
	if _, _, err := q.names(); err == nil || !strings.Contains(err.Error(), "kubeconfig: stat none: ") {
		t.Errorf("no cluster: %v", err)
	}
}

// TestWhatIsAssumedIsTheFirstLine verifies that human-readable results begin with the assumptions
// if they depend on them, and that machine-readable results omit the assumptions.
func TestWhatIsAssumedIsTheFirstLine(t *testing.T) {
	nowhere(t)
	api := apitest.New(t)
	api.Set("nodes", apitest.Object{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "a", "uid": "a"}})
	config := kubeconfig(t, t.TempDir(), api.Config.Host, "")
	profile := write(t, "profile.yaml", "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n")
	for args, want := range map[string]bool{"": true, "-o wide": true, "-o json": false, "-o name": false, "certain": false, "--config " + profile: false} {
		certain := args == "certain"
		q := newQuestion(append(strings.Fields(strings.TrimPrefix(args, "certain")), "--kubeconfig", config)...)
		err := q.Ask(q.cmd, func(*simulate.World, simulate.Source) (*Answer, error) {
			return &Answer{Document: document{"fine"}, Certain: certain}, nil
		})
		if got := strings.HasPrefix(q.out.String(), "Assumed: "); err != nil || got != want {
			t.Errorf("%q: %q, %v", args, q.out.String(), err)
		}
	}

	write(t, "a.yaml", node("a"))
	q := newQuestion("-f", "a.yaml")
	if _, source, err := q.ReadWorld(q.cmd); err != nil || q.assumed != "" || source.Assumed != "" {
		t.Errorf("manifests have no scheduler: %q, %+v, %v", q.assumed, source, err)
	}
}

// TestNoPodIsEvictedOnAnAssumption verifies that evictions require a known configuration, from
// --config, a Lease or the scheduler, or permission to assume one.
func TestNoPodIsEvictedOnAnAssumption(t *testing.T) {
	nowhere(t)
	api := fakeapi.New()
	q := newQuestion("--kubeconfig", kubeconfig(t, t.TempDir(), "https://127.0.0.1:1", ""))
	_, err := q.RunningIn(q.cmd, api.Client(), false)
	if err == nil || !strings.Contains(err.Error(), "no pod is evicted on an assumption (default-scheduler runs with the default configuration, because ") ||
		!strings.Contains(err.Error(), "--config") || !strings.Contains(err.Error(), "--scheduler-url") {
		t.Errorf("%v", err)
	}
	if running, err := q.RunningIn(q.cmd, api.Client(), true); err != nil || running.Assumed == "" {
		t.Errorf("it may be assumed: %+v, %v", running, err)
	}

	api.SetFault(func(*http.Request) fakeapi.Fault { return fakeapi.Fault{Status: http.StatusForbidden} })
	if running, err := q.RunningIn(q.cmd, api.Client(), true); err != nil || running.Assumed == "" {
		t.Errorf("Leases that may not be read: %+v, %v", running, err)
	}
	api.SetFault(func(*http.Request) fakeapi.Fault { return fakeapi.Fault{Status: http.StatusInternalServerError} })
	if _, err := q.RunningIn(q.cmd, api.Client(), true); err == nil {
		t.Error("an API server that fails is no reason to assume anything")
	}
	api.SetFault(nil)

	q.Config = write(t, "profile.yaml", "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles: [{schedulerName: mine}]\n")
	if err := q.Prepare(q.cmd); err != nil {
		t.Fatal(err)
	}
	if running, err := q.RunningIn(q.cmd, api.Client(), false); err != nil || running.Profiles[0].SchedulerName != "mine" {
		t.Errorf("--config: %+v, %v", running, err)
	}
}

// TestASchedulerThatIsSilentIsAskedOnce verifies that an unresponsive scheduler is queried and
// reported once per result, and again for the next.
func TestASchedulerThatIsSilentIsAskedOnce(t *testing.T) {
	nowhere(t)
	count := 0
	server := told(t, 500, "broken")
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		count++
		http.Error(w, "broken", http.StatusInternalServerError)
	})
	q := newQuestion("--scheduler-url", server.URL)
	for range 2 {
		if _, err := q.running(q.cmd, []*coordinationv1.Lease{}, now); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if d := q.Decision(q.cmd, "shop", "web"); d != nil {
				t.Errorf("%+v", d)
			}
		}
	}
	if text := q.errs.String(); count != 2 || strings.Count(text, "not asked: the scheduler: ") != 1 || !strings.Contains(text, "500 Internal Server Error: broken") {
		t.Errorf("asked %d times: %q", count, text)
	}
	if q := newQuestion("-f", "a.yaml"); q.scheduler() != nil {
		t.Error("a scheduler is asked about files")
	}
	if q := newQuestion("-f", "a.yaml", "--scheduler-url", server.URL); q.scheduler() == nil {
		t.Error("the scheduler that is named is not asked")
	}
}

func TestTheNamespaceIsTheFlagsOrTheContexts(t *testing.T) {
	nowhere(t)
	config := kubeconfig(t, t.TempDir(), "https://127.0.0.1:1", "")
	for args, want := range map[string][2]string{
		"--kubeconfig " + config:                  {"shop", "team"},
		"--kubeconfig " + config + " --context d": {"default", "team"},
		"--kubeconfig " + config + " -f a.yaml":   {"default", "team"},
		"":                                        {"default", "team"},
	} {
		q := newQuestion(strings.Fields(args)...)
		if got := [2]string{q.NamespaceOr(""), q.NamespaceOr("team")}; got != want {
			t.Errorf("%q: %v, want %v", args, got, want)
		}
	}
}

// TestClientsAreTuned verifies that the command sets the timeout and the rate of requests, unless a
// flag does.
func TestClientsAreTuned(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{0: 5 * time.Second, time.Minute: time.Minute} {
		cfg := &rest.Config{Timeout: timeout}
		if LimitTime(cfg); cfg.Timeout != want {
			t.Errorf("%v: %v", timeout, cfg.Timeout)
		}
	}
	nowhere(t)
	q := newQuestion("--kubeconfig", kubeconfig(t, t.TempDir(), "https://127.0.0.1:1", ""))
	tuned := 0
	if _, err := NewClient(&q.Cluster, "x", RaiseRateLimit, func(cfg *rest.Config) {
		if tuned++; cfg.QPS != 50 || cfg.Burst != 100 || !strings.HasSuffix(cfg.UserAgent, "/x") {
			t.Errorf("%+v", cfg)
		}
	}); err != nil || tuned != 1 {
		t.Errorf("%d, %v", tuned, err)
	}
}

// TestAKustomizationStaysHere verifies that a kustomization cannot contact a host or run a program,
// and that both are possible again afterwards.
func TestAKustomizationStaysHere(t *testing.T) {
	nowhere(t)
	var asked int
	server := told(t, 200, "")
	server.Config.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ })
	path, transport := os.Getenv("PATH"), http.DefaultTransport
	for _, resource := range []string{server.URL + "/a.yaml", "https://127.0.0.1:1/org/repository//base?ref=v1"} {
		write(t, "base/kustomization.yaml", "resources: ['"+resource+"']\n")
		_, err := newKustomizer(false)("base")
		if err == nil || !strings.HasSuffix(err.Error(), ": nothing is fetched without --fetch") || asked > 0 {
			t.Errorf("%s: asked %d times: %v", resource, asked, err)
		}
	}
	if os.Getenv("PATH") != path || http.DefaultTransport != transport {
		t.Error("the process stays offline")
	}
	write(t, "base/kustomization.yaml", "resources: [/etc/hostname]\n")
	if _, err := newKustomizer(false)("base"); err == nil || strings.Contains(err.Error(), "--fetch") {
		t.Errorf("a file outside: %v", err)
	}
}

// TestAKustomizationOfAliasesIsRefused verifies that a file with aliases for billions of values is
// rejected before their expansion.
func TestAKustomizationOfAliasesIsRefused(t *testing.T) {
	nowhere(t)
	bomb := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bomb}\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 12; i++ {
		bomb += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
	}
	write(t, "bomb/kustomization.yaml", "resources: [bomb.yaml]\n")
	write(t, "bomb/bomb.yaml", bomb)
	if _, err := newKustomizer(false)("bomb"); err == nil || !strings.Contains(err.Error(), "aliases") {
		t.Errorf("%v", err)
	}
}
