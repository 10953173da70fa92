// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/internal/docs"
	"github.com/berth-k8s/berth/test/internal/nightly"
)

// elsewhere lists the pages whose blocks are run by other tests.
var elsewhere = []string{
	"README.md",               // TestReadme
	"docs/tasks/scheduler.md", // TestSchedulerPage
}

// runElsewhere reports whether another test runs the page. Pages that name their cluster are run by
// TestPages of test/e2e_deploy.
func runElsewhere(page *docs.Page) bool {
	return slices.Contains(elsewhere, page.Path) || page.NamesCluster()
}

// TestPages verifies that the pages below docs/ work as written. It runs them one after the other
// on one cluster of `berth up`. The scripts of a page run in one shell, together with kubectl apply
// of its manifests and with console commands that run until Ctrl-C. Each page must leave the
// cluster as it found it. docs.Unrun lists the commands that no test runs.
func TestPages(t *testing.T) {
	t.Parallel()
	pages, err := docs.Pages(root)
	if err != nil {
		t.Fatal(err)
	}
	home := readersFolder(t)
	c := start(t, filepath.Join(home, ".berth"))
	found := state(t, c)
	count := 0
	for _, page := range pages {
		steps := stepsOf(t, page)
		if len(steps) == 0 || runElsewhere(page) {
			continue
		}
		count++
		well := t.Run(strings.TrimSuffix(strings.TrimPrefix(page.Path, "docs/"), ".md"), func(t *testing.T) {
			if slow := []string{"docs/tasks/tour.md", "docs/tasks/simulated-nodes.md", "docs/concepts/scheduling-and-eviction.md", "docs/concepts/admission.md"}; slices.Contains(slow, page.Path) {
				nightly.Only(t)
			}
			folder := readersFolder(t)
			if err := os.Symlink(c.dir, filepath.Join(folder, ".berth")); err != nil {
				t.Fatal(err)
			}
			runs(t, folder, readers+strings.Join(steps, "\n"), "PATH="+bin+":"+os.Getenv("PATH"))
			eventually(t, patience, func() error {
				if left := state(t, c); left != found {
					return fmt.Errorf("the page leaves\n%s\nand found\n%s", left, found)
				}
				return nil
			})
		})
		if !well {
			t.Fatal("the pages behind it are not run: the cluster is not as they expect it")
		}
	}
	if count < 8 {
		t.Errorf("only %d pages with something to run were found", count)
	}
}

// readers defines shell functions for what a reader does: kubectl, and Ctrl-C for commands that run
// until then.
const readers = `
kubectl() { berth kubectl "$@"; }
until_ready() {
	: > ready.log # that of the one before would be taken for its own
	"$@" > ready.log 2>&1 &
	until grep -q '^ready ' ready.log; do kill -0 $! || { cat ready.log; return 1; }; sleep 0.05; done
	kill -INT $!
	wait $!
}
`

// stepsOf converts a page to shell scripts.
func stepsOf(t *testing.T, page *docs.Page) (steps []string) {
	t.Helper()
	var undo []string
	for _, block := range page.Blocks {
		switch page.Fence(block) {
		case "sh":
			steps = append(steps, script(block))
		case "yaml":
			if objects := objectsIn(t, page, block); len(objects) > 0 {
				file := fmt.Sprintf("line-%d.yaml", block.Line)
				steps = append(steps, applied(file, block.Lines, objects))
				undo = append(undo, "kubectl delete --ignore-not-found -f "+file)
			}
		default:
			for _, command := range block.Commands() {
				if !page.Unruns(command) {
					steps = append(steps, "set -x\nuntil_ready "+command.Text)
				}
			}
		}
	}
	return append(steps, undo...)
}

type object struct {
	APIVersion, Kind string
	Metadata         struct{ Name string }
}

// TestManifestsOfPagesThatRunElsewhereAreInScripts verifies that the pages run by other tests have
// no separate manifests. Their scripts must write manifests to files, because the other tests apply
// no manifests.
func TestManifestsOfPagesThatRunElsewhereAreInScripts(t *testing.T) {
	pages, err := docs.Pages(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		for _, block := range page.Blocks {
			if runElsewhere(page) && block.Language == "yaml" && len(objectsIn(t, page, block)) > 0 {
				t.Errorf("%s:%d: no test applies this manifest: have a block of sh write it into a file", page.Path, block.Line)
			}
		}
	}
}

// objectsIn returns the objects in a manifest that kubectl can apply, without Berth's
// configurations and scenarios.
func objectsIn(t *testing.T, page *docs.Page, block docs.Block) (all []object) {
	t.Helper()
	for document := range strings.SplitSeq(strings.Join(block.Lines, "\n"), "\n---\n") {
		var o object
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			t.Fatalf("%s:%d: %v", page.Path, block.Line, err)
		}
		switch group, _, _ := strings.Cut(o.APIVersion, "/"); group {
		case "kubescheduler.config.k8s.io", "berth.dev":
		default:
			all = append(all, o)
		}
	}
	return all
}

// applied returns a script that applies a manifest, and waits until its objects run.
func applied(file string, lines []string, objects []object) string {
	steps := append([]string{"set -x", "cat > " + file + " <<'END'"}, lines...)
	steps = append(steps, "END", "kubectl apply -f "+file)
	for _, o := range objects {
		switch o.Kind {
		case "Pod":
			steps = append(steps, "kubectl wait --for=condition=Ready --timeout=60s pod/"+o.Metadata.Name)
		case "Deployment", "StatefulSet", "DaemonSet":
			steps = append(steps, "kubectl rollout status --timeout=60s "+strings.ToLower(o.Kind)+"/"+o.Metadata.Name)
		}
	}
	return strings.Join(steps, "\n")
}

// state describes what the next page could notice of a cluster: nodes with fields set by users,
// namespaces and pods, except namespaces and pods that are being deleted.
func state(t *testing.T, c *cluster) string {
	t.Helper()
	nodes, err := c.client.CoreV1().Nodes().List(background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	namespaces, err := c.client.CoreV1().Namespaces().List(background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pods, err := c.client.CoreV1().Pods("").List(background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, node := range nodes.Items {
		all = append(all, strings.Join(slices.Concat([]string{"node", node.Name}, notes(&node)), " "))
	}
	stay := map[string]bool{}
	for _, namespace := range namespaces.Items {
		if stay[namespace.Name] = namespace.DeletionTimestamp == nil; stay[namespace.Name] {
			all = append(all, "namespace "+namespace.Name)
		}
	}
	for _, pod := range pods.Items {
		if stay[pod.Namespace] && pod.DeletionTimestamp == nil {
			all = append(all, "pod "+pod.Namespace+"/"+pod.Name)
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// notes returns the labels, annotations and taints of a node that Kubernetes did not set, and
// whether the node is cordoned.
func notes(node *v1.Node) (all []string) {
	for _, key := range slices.Concat(slices.Collect(maps.Keys(node.Labels)), slices.Collect(maps.Keys(node.Annotations))) {
		if domain, _, _ := strings.Cut(key, "/"); !strings.HasSuffix(domain, "kubernetes.io") {
			all = append(all, key)
		}
	}
	for _, taint := range node.Spec.Taints {
		if !strings.HasPrefix(taint.Key, "node.kubernetes.io/") {
			all = append(all, taint.ToString())
		}
	}
	if node.Spec.Unschedulable {
		all = append(all, "cordoned")
	}
	slices.Sort(all)
	return all
}
