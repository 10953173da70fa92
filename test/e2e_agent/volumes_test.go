package e2eagent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// prints is what a command prints in the pod's container.
func (n *node) prints(t testing.TB, namespace, pod string, command ...string) string {
	t.Helper()
	return n.do(t, append([]string{"-n", namespace, "exec", pod, "-c", "c", "--"}, command...)...)
}

// awaitPrints until a command prints that in the pod's container.
func (n *node) awaitPrints(t testing.TB, namespace, pod, want string, command ...string) {
	t.Helper()
	eventually(t, strings.Join(command, " "), func() error {
		out, err := n.kubectl(append([]string{"-n", namespace, "exec", pod, "-c", "c", "--"}, command...)...)
		if err == nil && out != want {
			err = fmt.Errorf("it prints %q, want %q", out, want)
		}
		return err
	})
}

// awaitEvent until there is one of the pod with this reason and text.
func (n *node) awaitEvent(t testing.TB, namespace, pod, reason, text string) {
	t.Helper()
	eventually(t, reason+" "+text, func() error {
		list, err := n.client.CoreV1().Events(namespace).List(context.Background(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
		if err != nil {
			return err
		}
		var seen []string
		for _, event := range list.Items {
			if event.Reason == reason && strings.Contains(event.Message, text) {
				return nil
			}
			seen = append(seen, event.Reason+": "+event.Message)
		}
		return fmt.Errorf("there are only %q", seen)
	})
}

// All kinds of volumes in one pod, as its container sees them; then what they show changes.
func TestVolumesAndTheirChanges(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	host := t.TempDir()
	n.apply(t, ns, strings.ReplaceAll(`
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {a.conf: "one", b.conf: "b"}
---
apiVersion: v1
kind: Secret
metadata: {name: password}
stringData: {password: geheim}
---
apiVersion: v1
kind: Pod
metadata: {name: v, labels: {colour: red}}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  terminationGracePeriodSeconds: 1
  securityContext: {fsGroup: 2002}
  volumes:
  - {name: settings, configMap: {name: settings}}
  - {name: some, configMap: {name: settings, defaultMode: 0440, items: [{key: a.conf, path: deep/a, mode: 0400}]}}
  - {name: password, secret: {secretName: password}}
  - {name: info, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}, {path: cpu, resourceFieldRef: {containerName: c, resource: limits.cpu, divisor: 1m}}]}}
  - {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: work, emptyDir: {}}
  - {name: host, hostPath: {path: $HOST/made, type: DirectoryOrCreate}}
  containers:
  - name: c
    image: $IMAGE
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 0.1; done"]
    resources: {limits: {cpu: 250m, memory: 64Mi}}
    env: [{name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    volumeMounts:
    - {name: settings, mountPath: /settings}
    - {name: settings, mountPath: /one.conf, subPath: a.conf}
    - {name: some, mountPath: /some}
    - {name: password, mountPath: /password}
    - {name: info, mountPath: /info}
    - {name: memory, mountPath: /memory}
    - {name: work, mountPath: /room}
    - {name: work, mountPath: /part, subPathExpr: parts/$(NAME)}
    - {name: host, mountPath: /host}
`, "$HOST", host))
	pod := n.awaitPod(t, ns, "v", "ready", ready)
	for script, want := range map[string]string{
		"cat /settings/a.conf /settings/b.conf":       "oneb",
		"cat /one.conf":                               "one",
		"readlink /settings/a.conf":                   "..data/a.conf\n",
		"stat -c %a,%g /some/deep/a":                  "440,2002\n", // the item's mode, and that the group may read it
		"cat /password/password":                      "geheim",
		"cat /info/labels":                            `colour="red"`,
		"cat /info/cpu":                               "250",
		"stat -f -c %T /memory /password":             "tmpfs\ntmpfs\n",
		"stat -c %a,%g /room":                         "2777,2002\n",
		"touch /settings/x 2>&1 || true":              "touch: /settings/x: Read-only file system\n",
		"echo x > /part/file; cat /room/parts/v/file": "x\n",
		"echo x > /host/file":                         "",
		"dd if=/dev/zero of=/memory/f bs=1M count=2 2>/dev/null || echo full": "full\n",
		"cat /var/run/secrets/kubernetes.io/serviceaccount/namespace":         ns,
	} {
		if got := n.prints(t, ns, "v", "sh", "-c", script); got != want {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}
	if content, err := os.ReadFile(filepath.Join(host, "made", "file")); err != nil || string(content) != "x\n" {
		t.Errorf("on the host there is %q (%v)", content, err)
	}

	// The token is the pod's own, and good.
	token := n.prints(t, ns, "v", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token")
	review, err := n.client.AuthenticationV1().TokenReviews().Create(context.Background(),
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if user := review.Status.User; !review.Status.Authenticated || user.Username != "system:serviceaccount:"+ns+":default" ||
		strings.Join(user.Extra["authentication.kubernetes.io/pod-uid"], "") != string(pod.UID) {
		t.Errorf("token: %+v", review.Status)
	}

	n.do(t, "-n", ns, "patch", "configmap", "settings", "-p", `{"data":{"a.conf":"two","b.conf":null,"c.conf":"c"}}`)
	n.awaitPrints(t, ns, "v", "two", "cat", "/settings/a.conf")
	if got := n.prints(t, ns, "v", "ls", "/settings"); got != "a.conf\nc.conf\n" {
		t.Errorf("after the change there is %q", got)
	}
	if got := n.prints(t, ns, "v", "cat", "/one.conf"); got != "one" {
		t.Errorf("a subPath follows no change, but shows %q", got)
	}
	n.do(t, "-n", ns, "patch", "secret", "password", "-p", `{"stringData":{"password":"neu"}}`)
	n.awaitPrints(t, ns, "v", "neu", "cat", "/password/password")
	n.do(t, "-n", ns, "label", "pod", "v", "--overwrite", "colour=blue")
	n.awaitPrints(t, ns, "v", `colour="blue"`, "cat", "/info/labels")
	if got := n.pod(t, ns, "v").Status.ContainerStatuses[0].RestartCount; got != 0 {
		t.Errorf("it was restarted %d times", got)
	}
}

// What a pod refers to is not there; the pod says so, and goes on when it is.
func TestPodWaitsForWhatItRefersTo(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	n.apply(t, ns, `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {a: "A"}
---
apiVersion: v1
kind: Pod
metadata: {name: volume}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  terminationGracePeriodSeconds: 1
  volumes: [{name: x, configMap: {name: later}}, {name: wrong, hostPath: {path: /etc/passwd, type: Directory}}]
  containers: [{name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sleep, "10000"], volumeMounts: [{name: x, mountPath: /x}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: env}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sleep, "10000"], envFrom: [{configMapRef: {name: later}}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: key}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sleep, "10000"], env: [{name: A, valueFrom: {configMapKeyRef: {name: settings, key: b}}}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: type}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  volumes: [{name: wrong, hostPath: {path: /etc/passwd, type: Directory}}]
  containers: [{name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sleep, "10000"], volumeMounts: [{name: wrong, mountPath: /x}]}]
`)
	n.awaitEvent(t, ns, "volume", "FailedMount", `MountVolume.SetUp failed for volume "x" : configmap "later" not found`)
	n.awaitEvent(t, ns, "type", "FailedMount", `MountVolume.SetUp failed for volume "wrong" : hostPath type check failed: /etc/passwd is not a directory`)
	for name, message := range map[string]string{
		"env": `configmap "later" not found`,
		"key": "couldn't find key b in ConfigMap " + ns + "/settings",
	} {
		n.awaitPod(t, ns, name, message, func(pod *v1.Pod) bool {
			for _, cs := range pod.Status.ContainerStatuses {
				if w := cs.State.Waiting; w != nil && w.Reason == "CreateContainerConfigError" && w.Message == message {
					return true
				}
			}
			return false
		})
	}
	if pod := n.pod(t, ns, "volume"); pod.Status.Phase != v1.PodPending || !waits("ContainerCreating")(pod) {
		t.Errorf("it is %s %+v", pod.Status.Phase, pod.Status.ContainerStatuses)
	}
	n.do(t, "-n", ns, "create", "configmap", "later", "--from-literal=LATE=yes")
	n.do(t, "-n", ns, "patch", "configmap", "settings", "-p", `{"data":{"b":"B"}}`)
	for _, name := range []string{"volume", "env", "key"} {
		n.awaitPod(t, ns, name, "ready", ready)
	}
	if got := n.prints(t, ns, "volume", "cat", "/x/LATE") + n.prints(t, ns, "env", "sh", "-c", "echo $LATE") + n.prints(t, ns, "key", "sh", "-c", "echo $A"); got != "yesyes\nB\n" {
		t.Errorf("got %q", got)
	}
}

// What a container is told: its variables, who it is, and whom it knows by name.
func TestEnvironmentAndNames(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	n.apply(t, ns, `
apiVersion: v1
kind: Service
metadata: {name: my-db}
spec: {selector: {app: none}, ports: [{name: sql, port: 5432}]}
---
apiVersion: v1
kind: Pod
metadata: {name: e}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  terminationGracePeriodSeconds: 1
  hostname: front
  subdomain: web
  hostAliases: [{ip: 192.0.2.7, hostnames: [legacy]}]
  dnsPolicy: None
  dnsConfig: {nameservers: [192.0.2.53], searches: [example.org], options: [{name: ndots, value: "1"}]}
  containers:
  - name: c
    image: $IMAGE
    imagePullPolicy: IfNotPresent
    command: [sh, -c, 'echo "$@"; sleep 10000', sh, $(GREETING), $$(GREETING)]
    args: ["$(MY_DB_SERVICE_PORT_SQL)"]
    resources: {requests: {memory: 32Mi}, limits: {cpu: 1500m}}
    env:
    - {name: WHO, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    - {name: GREETING, value: "hello-$(WHO)"}
    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: CPUS, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
    - {name: MEMORY, valueFrom: {resourceFieldRef: {resource: requests.memory, divisor: 1Mi}}}
    - {name: DB, value: "$(MY_DB_SERVICE_HOST)"}
`)
	pod := n.awaitPod(t, ns, "e", "ready", ready)
	if got, want := n.do(t, "-n", ns, "logs", "e"), "hello-"+ns+" $(GREETING) 5432\n"; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
	service := strings.TrimSpace(n.do(t, "-n", ns, "get", "service", "my-db", "-o", "jsonpath={.spec.clusterIP}"))
	for command, want := range map[string]string{
		"echo $NODE $IP $CPUS $MEMORY $DB":         strings.Join([]string{n.name, pod.Status.PodIP, "2", "32", service}, " ") + "\n",
		"echo ${KUBERNETES_SERVICE_HOST:-missing}": strings.TrimSpace(n.do(t, "get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}")) + "\n",
		"hostname":               "front\n",
		"grep legacy /etc/hosts": "192.0.2.7\tlegacy\n",
		"grep front /etc/hosts":  pod.Status.PodIP + "\tfront.web." + ns + ".svc.cluster.local\tfront\n",
		"cat /etc/resolv.conf":   "search example.org\nnameserver 192.0.2.53\noptions ndots:1\n",
	} {
		if got := n.prints(t, ns, "e", "sh", "-c", command); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
}

// A container leaves links to the host where a subPath and the end of the pod would come along.
func TestContainersCannotReachTheHostByLinks(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "precious"), []byte("precious"), 0o644); err != nil {
		t.Fatal(err)
	}
	n.apply(t, ns, strings.ReplaceAll(`
apiVersion: v1
kind: Pod
metadata: {name: evil}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  terminationGracePeriodSeconds: 1
  volumes: [{name: v, emptyDir: {}}]
  initContainers: [{name: i, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [ln, -s, $OUTSIDE, /v/out], volumeMounts: [{name: v, mountPath: /v}]}]
  containers: [{name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sleep, "10000"], volumeMounts: [{name: v, mountPath: /v, subPath: out}]}]
`, "$OUTSIDE", outside))
	const message = `failed to prepare subPath for volumeMount "v" of container "c"`
	pod := n.awaitPod(t, ns, "evil", message, func(pod *v1.Pod) bool {
		cs := pod.Status.ContainerStatuses
		return len(cs) == 1 && cs[0].State.Waiting != nil && cs[0].State.Waiting.Message == message
	})
	folder := filepath.Join(n.dir, "pods", string(pod.UID))
	if _, err := os.Stat(folder); err != nil {
		t.Errorf("the pod's folder: %v", err)
	}
	n.do(t, "-n", ns, "delete", "pod", "evil", "--wait=false")
	n.awaitGone(t, ns, "evil")
	eventually(t, "its folder gone", func() error {
		if _, err := os.Lstat(folder); !os.IsNotExist(err) {
			return fmt.Errorf("it is there: %v", err)
		}
		return nil
	})
	if content, err := os.ReadFile(filepath.Join(outside, "precious")); err != nil || string(content) != "precious" {
		t.Errorf("outside there is %q (%v)", content, err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), string(pod.UID)) {
		t.Errorf("something of it is still mounted (%v)", err)
	}
}

// The agent is killed: what containers wrote stays, and what changes afterwards is shown to the
// containers that ran on.
func TestVolumesAfterAKill(t *testing.T) {
	t.Parallel()
	n := newNode(t, "volumes-kill")
	ns := n.namespace(t)
	n.apply(t, ns, `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {a: "one"}
---
apiVersion: v1
kind: Pod
metadata: {name: v, labels: {colour: red}}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  terminationGracePeriodSeconds: 1
  volumes:
  - {name: settings, configMap: {name: settings}}
  - {name: memory, emptyDir: {medium: Memory}}
  - {name: work, emptyDir: {}}
  - {name: info, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
  containers:
  - name: c
    image: $IMAGE
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "echo m > /memory/f; echo w > /room/f; sleep 10000"]
    readinessProbe: {exec: {command: [cat, /room/f]}, periodSeconds: 1, timeoutSeconds: 30}
    volumeMounts: [{name: settings, mountPath: /settings}, {name: memory, mountPath: /memory}, {name: work, mountPath: /room}, {name: info, mountPath: /info}]
`)
	before := n.awaitPod(t, ns, "v", "ready", ready)
	n.agent.kill()
	n.do(t, "-n", ns, "patch", "configmap", "settings", "-p", `{"data":{"a":"two"}}`)
	n.do(t, "-n", ns, "label", "pod", "v", "--overwrite", "colour=blue")
	if err := n.agent.start("ready node " + n.name); err != nil {
		t.Fatal(err)
	}
	n.awaitPrints(t, ns, "v", "two", "cat", "/settings/a")
	n.awaitPrints(t, ns, "v", `colour="blue"`, "cat", "/info/labels")
	if got := n.prints(t, ns, "v", "cat", "/memory/f", "/room/f"); got != "m\nw\n" {
		t.Errorf("got %q", got)
	}
	after := n.pod(t, ns, "v")
	if !ready(after) || after.Status.ContainerStatuses[0].ContainerID != before.Status.ContainerStatuses[0].ContainerID || after.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("before %+v, after %+v", before.Status.ContainerStatuses, after.Status.ContainerStatuses)
	}
	for _, condition := range after.Status.Conditions {
		if condition.Type == v1.PodReady {
			for _, was := range before.Status.Conditions {
				if was.Type == v1.PodReady && !was.LastTransitionTime.Equal(&condition.LastTransitionTime) {
					t.Errorf("it was not ready in between: %v and %v", was.LastTransitionTime, condition.LastTransitionTime)
				}
			}
		}
	}
}
