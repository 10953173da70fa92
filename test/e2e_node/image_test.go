// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2enode

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-k8s/berth/deploy"
	"github.com/berth-k8s/berth/internal/containerd"
	"github.com/berth-k8s/berth/test/internal/binaries"
	"github.com/berth-k8s/berth/test/internal/nightly"
)

// TestFromImageAndManifests verifies Berth running as pods, from its image and its manifests, on a
// node of `berth up --agent`: installation, placement and eviction of pods, an upgrade while pods
// are created, a failed upgrade to a missing version, a rollback, and a complete removal.
func TestFromImageAndManifests(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	mustRunContainers(t)
	h := &hosted{T: t, dir: filepath.Join(t.TempDir(), "data")}
	first, next := h.pack("v1.0.0"), h.pack("v1.1.0")
	h.up(first)

	// After the installation, the leaders are pods.
	h.leads("kube-system", "kube-scheduler", "berth-scheduler-")
	h.leads(deploy.Namespace, "berth-controller", "berth-controller-")
	h.runs("v1.0.0")

	// Verify scheduling and admission. (Upstream's plugin for this annotation is off by default;
	// Berth's webhook always applies the annotation.)
	h.kubectl("annotate", "namespace", "default", `scheduler.alpha.kubernetes.io/defaultTolerations=[{"key":"from","operator":"Equal","value":"webhook"}]`)
	h.kubectl("create", "deployment", "web", "--image=berth.local/busybox:1", "--replicas=2", "--", "sh", "-c", "trap exit TERM; sleep 3600 & wait")
	h.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
	if got := h.kubectl("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].spec.tolerations[?(@.key=='from')].value}"); got != "webhook webhook" {
		t.Errorf("tolerations by the namespace's annotation: %q", got)
	}

	// Verify evictions and the placement of successor pods. (Berth's scheduler and controllers
	// tolerate this taint, because no other component could place their successors.)
	node := h.kubectl("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
	before := h.kubectl("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.uid}")
	h.kubectl("taint", "node", node, "maintenance=now:NoExecute")
	h.eventually("the pods of web are gone", func() error {
		return none(h.kubectl("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.uid}"), strings.Fields(before))
	})
	if left := h.kubectl("get", "pods", "-n", deploy.Namespace, "-o", "name"); strings.Count(left, "berth-scheduler") != 2 || strings.Count(left, "berth-controller") != 2 {
		t.Errorf("of Berth's own pods the taint left: %s", left)
	}
	h.kubectl("taint", "node", node, "maintenance-")
	h.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
	h.rolledOut() // wait until the webhook's old pod has ended

	// Upgrade while pods are created.
	stream := h.stream()
	h.load(next)
	h.tag("v1.1.0")
	h.kubectl("apply", "-k", h.manifests())
	h.rolledOut()
	h.runs("v1.1.0")
	created := stream.stop()
	h.eventually(fmt.Sprintf("all %d pods created during the upgrade run", created), func() error { return h.allRun("stream") })
	t.Logf("%d pods created during the upgrade, all run", created)

	// During an upgrade to a missing version, the old pods keep running.
	h.tag("v9.9.9")
	h.kubectl("apply", "-k", h.manifests())
	h.eventually("the image is missed", func() error {
		if !strings.Contains(h.kubectl("get", "pods", "-n", deploy.Namespace), "ImagePull") {
			return errNotYet
		}
		return nil
	})
	h.kubectl("run", "meanwhile", "--image=berth.local/busybox:1", "--restart=Never", "--", "true")
	h.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/meanwhile", "--timeout=60s")
	for _, part := range hostedParts {
		h.kubectl("rollout", "undo", "-n", deploy.Namespace, "deployment/"+part)
	}
	h.rolledOut()
	h.runs("v1.1.0")

	// Roll back to the first version.
	h.tag("v1.0.0")
	h.kubectl("apply", "-k", h.manifests())
	h.rolledOut()
	h.runs("v1.0.0")
	h.leads("kube-system", "kube-scheduler", "berth-scheduler-")
	h.kubectl("run", "after", "--image=berth.local/busybox:1", "--restart=Never", "--", "true")
	h.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/after", "--timeout=60s")

	// Remove Berth as described in docs/tasks/install.md.
	h.kubectl("delete", "-k", h.manifests(), "--timeout=90s")
	h.eventually("nothing is left", func() error {
		if left := h.leftovers(); left != "" {
			return fmt.Errorf("left behind: %s", left)
		}
		return nil
	})
	h.eventually("its containers are gone", func() error {
		out, err := exec.Command("ctr", "--address", h.socket(), "--namespace", "k8s.io", "containers", "list").CombinedOutput()
		if err != nil || strings.Contains(string(out), "/berth:") {
			return fmt.Errorf("%v: %s", err, out)
		}
		return nil
	})
	// All other pods have kept running.
	h.kubectl("rollout", "status", "deployment/web", "--timeout=10s")
}

// hosted is a cluster that runs Berth as pods.
type hosted struct {
	*testing.T
	dir     string
	process *process
	client  kubernetes.Interface
}

var hostedParts = []string{"berth-scheduler", "berth-controller", "berth-webhook"}

const hostedImage = "berth.local/team/berth"

// pack builds an image with the given version from the programs under test.
func (h *hosted) pack(version string) string {
	h.Helper()
	file := filepath.Join(work, "berth-"+version+".tar")
	if err := binaries.Image(bin, "../..", hostedImage+":"+version, file); err != nil {
		h.Fatal(err)
	}
	return file
}

func (h *hosted) up(image string) {
	h.Helper()
	h.process = newProcess(filepath.Join(bin, "berth"), "up", "--data-dir", h.dir, "--agent", "--nodes", "0", "--ui-port", "-1", "--from-image", image)
	began := time.Now()
	h.Cleanup(func() {
		if err := h.process.stop(); err != nil {
			h.Errorf("berth up: %v", err)
		}
		if left, _ := filepath.Glob(filepath.Dir(h.socket())); len(left) > 0 {
			h.Errorf("left of its containerd: %v", left)
		}
	})
	if err := h.process.start("Berth is up"); err != nil {
		h.Fatal(err)
	}
	h.Logf("up from image and manifests after %.1f s", time.Since(began).Seconds())
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(h.dir, "kubeconfig"))
	if err != nil {
		h.Fatal(err)
	}
	config.QPS = -1
	h.client = kubernetes.NewForConfigOrDie(config)
	h.Cleanup(func() {
		if h.Failed() {
			h.Logf("%s", h.try("get", "pods,leases", "-A", "-l", "app!=stream", "-o", "wide"))
		}
	})
}

// socket returns the socket of the containerd started by berth up, from its output.
func (h *hosted) socket() string {
	found := regexp.MustCompile(`unix://(/\S+/containerd\.sock)`).FindStringSubmatch(h.process.out.String())
	if found == nil {
		h.Fatalf("berth up does not say which containerd it has started:\n%s", h.process.out.tail())
	}
	return found[1]
}

func (h *hosted) load(image string) {
	h.Helper()
	if out, err := exec.Command("ctr", "--address", h.socket(), "--namespace", "k8s.io", "images", "import", image).CombinedOutput(); err != nil {
		h.Fatalf("import: %v\n%s", err, out)
	}
}

// manifests returns the folder of the manifests written and applied by berth up.
func (h *hosted) manifests() string { return filepath.Join(h.dir, "manifests", "here") }

// tag sets the version in the manifests, as a user would.
func (h *hosted) tag(version string) {
	h.Helper()
	file := filepath.Join(h.manifests(), "kustomization.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		h.Fatal(err)
	}
	changed := regexp.MustCompile(`newTag: "[^"]*"`).ReplaceAll(text, []byte(`newTag: "`+version+`"`))
	if err := os.WriteFile(file, changed, 0o644); err != nil {
		h.Fatal(err)
	}
}

func (h *hosted) kubectl(args ...string) string {
	h.Helper()
	cmd := exec.Command(filepath.Join(bin, "berth"), append([]string{"kubectl", "--data-dir", h.dir}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		h.Fatalf("kubectl %s: %v\n%s%s", strings.Join(args, " "), err, out, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

func (h *hosted) try(args ...string) string {
	out, _ := exec.Command(filepath.Join(bin, "berth"), append([]string{"kubectl", "--data-dir", h.dir}, args...)...).CombinedOutput()
	return string(out)
}

func (h *hosted) eventually(what string, f func() error) {
	h.Helper()
	eventually(h.T, what, f)
}

// leads waits until a pod with the given name prefix holds the Lease.
func (h *hosted) leads(namespace, lease, pod string) {
	h.Helper()
	h.eventually(lease+" leads", func() error {
		l, err := h.client.CoordinationV1().Leases(namespace).Get(h.Context(), lease, metav1.GetOptions{})
		if err == nil && (l.Spec.HolderIdentity == nil || !strings.HasPrefix(*l.Spec.HolderIdentity, pod)) {
			err = fmt.Errorf("the Lease is held by %v", l.Spec.HolderIdentity)
		}
		return err
	})
}

// rolledOut waits until the rollouts of all components are complete.
func (h *hosted) rolledOut() {
	h.Helper()
	for _, part := range hostedParts {
		h.kubectl("rollout", "status", "-n", deploy.Namespace, "deployment/"+part, "--timeout=120s")
	}
}

// runs waits until each component has two pods of the given version, ignoring terminating pods.
func (h *hosted) runs(version string) {
	h.Helper()
	h.eventually("Berth is "+version, func() error {
		pods, err := h.client.CoreV1().Pods(deploy.Namespace).List(h.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		count := 0
		for _, pod := range pods.Items {
			if image := pod.Spec.Containers[0].Image; pod.DeletionTimestamp == nil && image != hostedImage+":"+version {
				return fmt.Errorf("%s runs %s", pod.Name, image)
			} else if pod.DeletionTimestamp == nil {
				count++
			}
		}
		if count != 2*len(hostedParts) {
			return fmt.Errorf("%d pods", count)
		}
		return nil
	})
}

// stream creates five pods per second until it is stopped.
type stream struct {
	cancel  context.CancelFunc
	running sync.WaitGroup
	created int
}

func (h *hosted) stream() *stream {
	ctx, cancel := context.WithCancel(h.Context())
	s := &stream{cancel: cancel}
	s.running.Go(func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil && s.created < 60 { // the node has 110 pod slots
			pod := &v1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("stream-%d", s.created), Labels: map[string]string{"app": "stream"}},
				Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: containerd.Busybox, Command: []string{"sleep", "3600"}}},
					TerminationGracePeriodSeconds: new(int64)},
			}
			if _, err := h.client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil && ctx.Err() == nil {
				h.Errorf("create %s: %v", pod.Name, err)
			} else if err == nil {
				s.created++
			}
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	})
	return s
}

func (s *stream) stop() int {
	s.cancel()
	s.running.Wait()
	return s.created
}

func (h *hosted) allRun(app string) error {
	pods, err := h.client.CoreV1().Pods("default").List(h.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		return err
	}
	for _, pod := range pods.Items {
		if pod.Status.Phase != v1.PodRunning {
			return fmt.Errorf("%s is %s on node %q", pod.Name, pod.Status.Phase, pod.Spec.NodeName)
		}
	}
	return nil
}

// leftovers lists the remaining objects of Berth and of its components, of all kinds and in all
// namespaces.
func (h *hosted) leftovers() string {
	h.Helper()
	kinds := h.kubectl("api-resources", "--verbs=list", "-o", "name")
	var listed []string
	for _, kind := range strings.Fields(kinds) {
		if kind != "events" && kind != "events.events.k8s.io" {
			listed = append(listed, kind)
		}
	}
	var left []string
	for line := range strings.Lines(h.kubectl("get", strings.Join(listed, ","), "-A", "-o", `jsonpath={range .items[*]}{.kind} {.metadata.namespace} {.metadata.name}{"\n"}{end}`)) {
		// Only Berth's objects have such names.
		if strings.Contains(line, "berth-") && !strings.HasPrefix(line, "Pod default ") && !strings.HasPrefix(line, "Node ") {
			left = append(left, line)
		}
	}
	return strings.Join(left, "")
}

// none returns an error if the text contains one of the words.
func none(text string, words []string) error {
	for _, word := range words {
		if strings.Contains(text, word) {
			return fmt.Errorf("%s is still there", word)
		}
	}
	return nil
}
