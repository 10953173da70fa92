package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
)

func readText(t *testing.T, text string) (*v1.Pod, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pod.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	pod, err := readPod(path, "Node-1")
	return pod, err
}

func TestStaticPodGetsDefaultsAndANameOfItsNode(t *testing.T) {
	pod, err := readText(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: nginx}]}\n")
	if err != nil {
		t.Fatal(err)
	}
	if pod.Name != "web-node-1" || pod.Namespace != "default" || pod.UID == "" || pod.Spec.NodeName != "Node-1" {
		t.Errorf("metadata: %+v", pod.ObjectMeta)
	}
	if pod.Spec.RestartPolicy != v1.RestartPolicyAlways || *pod.Spec.TerminationGracePeriodSeconds != 30 || pod.Spec.Containers[0].ImagePullPolicy != v1.PullAlways {
		t.Errorf("spec: %+v", pod.Spec)
	}
	if pod.Annotations[annotationConfigSource] != "file" || pod.Annotations[annotationConfigHash] != string(pod.UID) {
		t.Errorf("annotations: %v", pod.Annotations)
	}
	if last := pod.Spec.Tolerations[len(pod.Spec.Tolerations)-1]; last.Operator != v1.TolerationOpExists || last.Effect != v1.TaintEffectNoExecute {
		t.Errorf("tolerations: %v", pod.Spec.Tolerations)
	}
}

// Each is refused with its file, the field and what is wrong with it.
func TestFilesThatAreNoStaticPods(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n"
	one := func(container string) string {
		return pod + "spec: {containers: [{name: c, image: i" + container + "}]}\n"
	}
	probe := func(probe string) string {
		return one(", livenessProbe: {tcpSocket: {port: 80}, " + probe + "}")
	}
	for text, why := range map[string]string{
		"apiVersion: v1\nkind: Service\nmetadata: {name: x}\n":         `kind "Service" of "v1": must be Pod of v1`,
		"apiVersion: v2\nkind: Pod\nmetadata: {name: x}\n":             `kind "Pod" of "v2": must be Pod of v1`,
		"apiVersion: v1\nkind: Pod\nspec: {containers: [{name: c}]}\n": "metadata.name: must be set",
		pod:                              "spec.containers: Required value",
		pod + "spec: {kontainers: []}\n": `unknown field "kontainers"`,
		pod + "spec: {serviceAccountName: a, containers: [{name: c, image: i}]}\n":                         "static pods may not reference serviceaccounts",
		pod + "spec: {containers: [{name: c, image: i}], volumes: [{name: v, secret: {secretName: s}}]}\n": "static pods may not reference secrets",
		one(", envFrom: [{configMapRef: {name: m}}]"):                                                      "static pods may not reference configmaps",
		pod + "spec: {containers: [{image: i}]}\n":                                                         "spec.containers[0].name: Required value",
		pod + "spec: {containers: [{name: c}]}\n":                                                          "spec.containers[0].image: Required value",
		pod + "spec: {containers: [{name: c, image: i}, {name: c, image: i}]}\n":                           `spec.containers[1].name: Duplicate value: "c"`,
		pod + "spec: {containers: [{name: ../c, image: i}]}\n":                                             `spec.containers[0].name: Invalid value: "../c"`,
		pod + "spec: {containers: [{name: c, image: i}], initContainers: [{name: c, image: i}]}\n":         `spec.initContainers[0].name: Duplicate value: "c"`,
		pod + "spec: {restartPolicy: Sometimes, containers: [{name: c, image: i}]}\n":                      `spec.restartPolicy: Unsupported value: "Sometimes"`,
		strings.Replace(one(""), "name: x", "name: ../../etc", 1):                                          `metadata.name: Invalid value: "../../etc-node-1"`,
		strings.Replace(one(""), "name: x", "name: x, namespace: ../y", 1):                                 `metadata.namespace: Invalid value: "../y"`,
		strings.Replace(one(""), "name: x", "name: x, uid: ../../y", 1):                                    `metadata.uid: Invalid value: "../../y"`,
		probe("periodSeconds: -1"):                                                                         "spec.containers[0].livenessProbe.periodSeconds: Invalid value: -1",
		probe("successThreshold: 3"):                                                                       "spec.containers[0].livenessProbe.successThreshold: Invalid value: 3",
		probe("exec: {command: [x]}"):                                                                      "spec.containers[0].livenessProbe: Forbidden: may not specify more than 1 handler type",
		one(", readinessProbe: {}"):                                                                        "spec.containers[0].readinessProbe: Required value: must specify a handler type",
		one(", resources: {requests: {cpu: 2}, limits: {cpu: 1}}"):                                         `spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1`,
		one(", volumeMounts: [{name: v, mountPath: /v}]"):                                                  `spec.containers[0].volumeMounts[0].name: Not found: "v"`,
		one(", ports: [{containerPort: 70000}]"):                                                           "spec.containers[0].ports[0].containerPort: Invalid value: 70000",
		one(", securityContext: {runAsUser: -1}"):                                                          "spec.containers[0].securityContext.runAsUser: Invalid value: -1",
	} {
		_, err := readText(t, text)
		if err == nil || !strings.Contains(err.Error(), "pod.yaml: ") || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v; want %s", text, err, why)
		}
	}
}

// What is no file, or too large for a pod, is refused without being read: a pipe that nobody writes
// to would hold up all static pods.
func TestWhatIsNoFile(t *testing.T) {
	n, _ := newNode(t)
	n.config.StaticPodPath = t.TempDir()
	in := func(name string) string { return filepath.Join(n.config.StaticPodPath, name) }
	text := "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n"
	elsewhere := filepath.Join(t.TempDir(), "web.yaml")
	for _, err := range []error{
		unix.Mkfifo(in("a-pipe.yaml"), 0o644), os.Symlink("/dev/null", in("b-device.yaml")), os.Symlink(t.TempDir(), in("c-folder.yaml")),
		os.WriteFile(in("d-large.yaml"), nil, 0o644), os.Truncate(in("d-large.yaml"), 11<<20),
		os.WriteFile(elsewhere, []byte(text), 0o644), os.Symlink(elsewhere, in("web.yaml")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	complained, done := map[string]string{}, make(chan struct{})
	var wanted map[types.UID]*v1.Pod
	var err error
	go func() { wanted, err = n.readStatic(complained); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("the folder is never read to its end")
	}
	if err != nil || len(wanted) != 1 {
		t.Errorf("%d pods, %v", len(wanted), err)
	}
	for name, why := range map[string]string{
		"a-pipe.yaml": "not a file", "b-device.yaml": "not a file", "c-folder.yaml": "not a file", "d-large.yaml": "larger than 10 MiB",
	} {
		if got, want := complained[in(name)], in(name)+": "+why; got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}

// A file that is refused is told of once, by an event of the node; what ran from it before runs on.
func TestRefusedFileLeavesWhatRan(t *testing.T) {
	n, ctx := newNode(t)
	n.config.StaticPodPath = t.TempDir()
	complained := map[string]string{}
	path := filepath.Join(n.config.StaticPodPath, "web.yaml")
	write := func(image string) map[types.UID]*v1.Pod {
		t.Helper()
		text := "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c" + image + "}]}\n"
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		wanted, err := n.readStatic(complained)
		if err != nil {
			t.Fatal(err)
		}
		n.runStatic(ctx, wanted)
		return wanted
	}
	first := write(", image: i")
	if len(first) != 1 {
		t.Fatalf("wanted at first: %v", first)
	}
	allEvents(n)
	for range 3 {
		if wanted := write(""); len(wanted) != 1 || fmt.Sprint(slices.Collect(maps.Keys(wanted))) != fmt.Sprint(slices.Collect(maps.Keys(first))) {
			t.Errorf("wanted of a file that is refused: %v", wanted)
		}
	}
	events := strings.Split(strings.TrimSpace(allEvents(n)), "\n")
	events = slices.DeleteFunc(events, func(e string) bool { return !strings.Contains(e, "FailedValidation") })
	if len(events) != 1 || events[0] != "Warning FailedValidation Static pod refused: "+path+": spec.containers[0].image: Required value" {
		t.Errorf("events: %q", events)
	}
}

func TestChangedFileIsAnotherPod(t *testing.T) {
	const text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: nginx}]}\n"
	path := filepath.Join(t.TempDir(), "pod.yaml")
	uid := func(text string) string {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		pod, err := readPod(path, "n")
		if err != nil {
			t.Fatal(err)
		}
		return string(pod.UID)
	}
	first, again, other := uid(text), uid(text+"\n# a comment\n"), uid(strings.Replace(text, "nginx", "nginx:2", 1))
	if first != again || first == other {
		t.Errorf("UIDs: %s, %s, %s", first, again, other)
	}
}

// A file that says which UID its pod has changes this pod, as with the kubelet: containers with
// another image are replaced, and what else has changed counts from their next start on.
func TestChangedFileOfAPodWithItsOwnUID(t *testing.T) {
	n, ctx := newNode(t)
	n.config.StaticPodPath = t.TempDir()
	write := func(image, label string) {
		t.Helper()
		text := "apiVersion: v1\nkind: Pod\nmetadata: {name: web, uid: own, labels: {l: " + label + "}}\n" +
			"spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: " + image + ", imagePullPolicy: IfNotPresent}]}\n"
		if err := os.WriteFile(filepath.Join(n.config.StaticPodPath, "web.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		wanted, err := n.readStatic(map[string]string{})
		if err != nil {
			t.Fatal(err)
		}
		n.runStatic(ctx, wanted)
	}
	runs := func(image string, restarts int32) {
		t.Helper()
		await(t, "it runs with "+image, func() bool {
			s := n.pods.get("own").known().Status
			return running(s) && s.ContainerStatuses[0].Image == image && s.ContainerStatuses[0].RestartCount == restarts
		})
	}
	write("i:1", "a")
	seen := n.pods.get("own").object().Annotations[annotationConfigSeen]
	runs("i:1", 0)
	write("i:1", "b")
	runs("i:1", 0)
	write("i:2", "b")
	runs("i:2", 1)
	if pod := n.pods.get("own").object(); pod.Labels["l"] != "b" || seen == "" || pod.Annotations[annotationConfigSeen] != seen {
		t.Errorf("labels %v, annotations %v", pod.Labels, pod.Annotations)
	}
}

// An API server that does not answer holds up no static pod.
func TestStaticPodsDoNotWaitForTheAPI(t *testing.T) {
	n, ctx := newNode(t)
	n.config.StaticPodPath, n.config.FileCheck = t.TempDir(), 10*time.Millisecond
	asked, answers := make(chan struct{}, 10), make(chan struct{})
	n.api.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		asked <- struct{}{}
		<-answers
		return true, nil, errors.New("timed out")
	})
	t.Cleanup(func() { close(answers) })
	write := func(name string) {
		t.Helper()
		text := "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec: {containers: [{name: c, image: i, imagePullPolicy: IfNotPresent}]}\n"
		if err := os.WriteFile(filepath.Join(n.config.StaticPodPath, name+".yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	n.apiListed()
	for _, part := range []func(context.Context){n.staticPods, n.showStatic} {
		n.pods.running.Go(func() { part(ctx) })
	}
	<-asked
	write("second")
	await(t, "the second one runs", func() bool { return n.resourcesOf("second-node-1") != nil })
}

// Of two files with a pod of one name, the last one counts, as with the kubelet, and the other is
// told of once. When the last one goes, the other takes over.
func TestTwoFilesOfOnePod(t *testing.T) {
	n, ctx := newNode(t)
	n.config.StaticPodPath = t.TempDir()
	in := func(name string) string { return filepath.Join(n.config.StaticPodPath, name) }
	for _, name := range []string{"a.yaml", "b.yaml"} {
		text := "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\n" +
			"spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: i, imagePullPolicy: IfNotPresent, args: [" + name + "]}]}\n"
		if err := os.WriteFile(in(name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	complained := map[string]string{}
	look := func() (wanted map[types.UID]*v1.Pod) {
		t.Helper()
		wanted, err := n.readStatic(complained)
		if err != nil {
			t.Fatal(err)
		}
		n.runStatic(ctx, wanted)
		return wanted
	}
	var last types.UID
	for range 3 {
		for uid, pod := range look() {
			if last = uid; pod.Annotations[annotationFile] != in("b.yaml") {
				t.Errorf("wanted is %s, too", pod.Annotations[annotationFile])
			}
		}
	}
	await(t, "one runs", func() bool { w := n.pods.get(last); return w != nil && running(w.known().Status) })
	var events []string
	for event := range strings.Lines(allEvents(n)) {
		if strings.Contains(event, "FailedValidation") {
			events = append(events, event)
		}
	}
	want := "Warning FailedValidation Static pod refused: " + in("a.yaml") + ": pod default/web-node-1 is that of " + in("b.yaml") + ", too, which comes later\n"
	if len(events) != 1 || events[0] != want {
		t.Errorf("events: %q, want %q", events, want)
	}
	if err := os.Remove(in("b.yaml")); err != nil {
		t.Fatal(err)
	}
	await(t, "the other runs", func() bool {
		n.dropGroup(t, last)
		for uid := range look() {
			w := n.pods.get(uid)
			return w != nil && running(w.known().Status)
		}
		return false
	})
}
