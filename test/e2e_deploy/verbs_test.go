// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2edeploy

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/deploy"
)

// part is a process of one of Berth's components, with a token of its ServiceAccount and a recorder
// between it and the API server.
type part struct {
	t       *testing.T
	what    deploy.Part
	granted []deploy.Right
	seen    *recorder
	out     *text
	kill    func() // kills the process
	// interrupt sends SIGINT.
	interrupt func()
}

// begin starts `berth WHAT` with the permissions in the manifests.
func (c *cluster) begin(what deploy.Part, seen *recorder, args ...string) *part {
	c.Helper()
	account := "berth-" + string(what)
	granted, err := deploy.Granted(rendered(c.T, "everything"), deploy.Namespace, account)
	if err != nil || len(granted) == 0 {
		c.Fatalf("%s is granted %v (%v)", account, granted, err)
	}
	p := &part{t: c.T, what: what, granted: granted, seen: seen}
	p.start(append([]string{string(what), "--kubeconfig", kubeconfig(c.T, seen, c.token(account))}, args...))
	return p
}

// start starts berth. It runs until the test ends or kill is called.
func (p *part) start(args []string) {
	p.t.Helper()
	t := p.t
	p.out = &text{}
	cmd := exec.Command(filepath.Join(bin, "berth"), args...)
	cmd.Stdout, cmd.Stderr = p.out, p.out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	p.interrupt = func() { _ = cmd.Process.Signal(os.Interrupt) }
	p.kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s said:\n%s", p.what, p.out)
		}
	})
}

// says waits until the process's output matches a pattern, and returns the pattern's last group.
func (p *part) says(pattern string) string {
	p.t.Helper()
	expression := regexp.MustCompile(pattern)
	var found []string
	eventually(p.t, func() error {
		if found = expression.FindStringSubmatch(p.out.String()); found == nil {
			return fmt.Errorf("%s has not said %q", p.what, pattern)
		}
		return nil
	})
	return found[len(found)-1]
}

// check waits until every permission was used, and reports forbidden requests.
func (p *part) check(exempt func(deploy.Right) bool) {
	p.t.Helper()
	rights := slices.DeleteFunc(slices.Clone(p.granted), exempt)
	if len(rights) < len(p.granted)/2 {
		p.t.Errorf("%s: of %d rights only %d are looked at", p.what, len(p.granted), len(rights))
	}
	eventually(p.t, func() error {
		if left := p.seen.left(rights); len(left) > 0 {
			return fmt.Errorf("%s has not used what it is granted:\n%s", p.what, strings.Join(left, "\n"))
		}
		return nil
	})
	for _, refusal := range p.seen.refused() {
		p.t.Errorf("%s needs what it is not granted: %s", p.what, refusal)
	}
	p.t.Logf("%s: %d rights, all of them used", p.what, len(p.granted))
}

// TestVerbsAreThoseUsed verifies that the manifests grant exactly the permissions that each
// component uses, by exercising all functions of each component.
func TestVerbsAreThoseUsed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.simulate(3)
	c.install("everything")
	c.kubectl("label", "node", "--all", "node-role.kubernetes.io/control-plane=")
	controller := c.beginController() // start the controller first, because it removes the initial taint of nodes
	t.Run("scheduler", func(t *testing.T) { c.at(t).schedulerUsesItsRights() })
	t.Run("controller", func(t *testing.T) { c.at(t).controllerUsesItsRights(controller) })
	t.Run("webhook", func(t *testing.T) { c.at(t).webhookUsesItsRights() })
	t.Run("shadow", func(t *testing.T) { c.at(t).shadowUsesItsRights() })
	t.Run("view", func(t *testing.T) { c.at(t).viewIsEnough() })
}

func (c *cluster) at(t *testing.T) *cluster {
	return &cluster{T: t, Config: c.Config, Kubeconfig: c.Kubeconfig, api: c.api}
}

// schedulerConfiguration writes the scheduler configuration in the manifests to a file.
func schedulerConfiguration(t *testing.T) string {
	t.Helper()
	var configuration string
	for _, document := range strings.Split(rendered(t, "everything"), "\n---\n") {
		var found v1.ConfigMap
		if err := yaml.Unmarshal([]byte(document), &found); err == nil && found.Name == "berth-scheduler" && found.Kind == "ConfigMap" {
			configuration = found.Data["scheduler.yaml"]
		}
	}
	path := filepath.Join(t.TempDir(), "scheduler.yaml")
	if err := os.WriteFile(path, []byte(configuration), 0o600); err != nil || configuration == "" {
		t.Fatalf("the manifests have no scheduler.yaml (%v)", err)
	}
	return path
}

func (c *cluster) schedulerUsesItsRights() {
	conflict := func(verb, resource, name string) *fault {
		return &fault{verb: verb, resource: resource, name: name, status: 409, reason: metav1.StatusReasonConflict, times: 1}
	}
	seen := record(c.T, c.Config,
		conflict("patch", "pods/status", "nowhere"),     // makes the scheduler read the pod again
		conflict("update", "resourceclaims/status", ""), // makes the scheduler read the claim again
		conflict("create", "pods/binding", "claims"),    // makes the scheduler release the pod's devices
		conflict("create", "pods/binding", "extended"),  // makes the scheduler release the claim created for the pod
	)
	file := schedulerConfiguration(c.T)
	p := c.begin(deploy.Scheduler, seen, "--config", file, "--gentle-preemption", "--bind-address=127.0.0.1",
		"--health-bind-address=127.0.0.1:0")
	p.says("(?m)^ready$")
	configuration, err := os.ReadFile(file)
	if err != nil {
		c.Fatal(err)
	}
	plain := p.says(`health and metrics on (http://\S+)`)
	for n := 1; n <= 2; n++ { // the same event twice is one event, counted
		if configuration = append(configuration, '\n'); os.WriteFile(file, configuration, 0o600) != nil {
			c.Fatal("the configuration cannot be changed")
		}
		eventually(c.T, func() error {
			return shows(plain, fmt.Sprintf(`berth_scheduler_config_reloads_total\{result="applied"\} %d`, n))
		})
	}
	c.apply(schedulerWork)
	for _, pod := range []string{"volume", "claims", "extended"} {
		c.kubectl("wait", "--for=condition=PodScheduled", "pod/"+pod, "--timeout=90s")
	}
	c.kubectl("wait", "--for=condition=Ready", "pod/victim", "--timeout=90s")
	c.apply(preemptor)
	c.kubectl("wait", "--for=condition=Ready", "pod/preemptor", "--timeout=90s")
	c.scrape(p.says(`health and metrics on (https://\S+)`))
	p.check(func(r deploy.Right) bool {
		return r.Resource == "resourceclaims/binding" || isOfGroups(r) // for the first, see TestClaimsNeedTheRightToBind
	})
	// Berth's pods, created by its manifests, were pending as well. The scheduler must place them.
	c.kubectl("wait", "-n", deploy.Namespace, "--for=condition=Available", "deployment", "--all", "--timeout=90s")
}

func (c *cluster) beginController() *part {
	c.Helper()
	seen := record(c.T, c.Config,
		&fault{verb: "patch", resource: "pods/status", name: "leaves", status: 409, reason: metav1.StatusReasonConflict, times: 1}) // forces a read
	p := c.begin(deploy.Controller, seen, "--leader-elect-resource-namespace=berth-system", "--health-bind-address=127.0.0.1:0",
		"--node-monitor-period=500ms", "--node-startup-grace-period=1s", "--node-monitor-grace-period=10m",
		"--evict-through-budgets", "--eviction-deadline=2s")
	p.says("(?m)^ready$")
	return p
}

func (c *cluster) controllerUsesItsRights(p *part) {
	p.t = c.T
	c.apply(controllerWork)
	for _, pod := range []string{"leaves", "held"} {
		c.kubectl("wait", "--for=condition=Ready", "pod/"+pod, "--timeout=90s")
	}
	eventually(c.T, func() error { // wait until the budget's status counts the pod
		b, err := c.api.PolicyV1().PodDisruptionBudgets("default").Get(c.T.Context(), "held", metav1.GetOptions{})
		if err == nil && b.Status.CurrentHealthy != 1 {
			err = fmt.Errorf("%+v", b.Status)
		}
		return err
	})
	c.kubectl("taint", "nodes", "node-3", "maintenance=now:NoExecute")
	c.kubectl("wait", "--for=delete", "pod/leaves", "pod/held", "--timeout=90s")
	c.kubectl("taint", "nodes", "node-3", "maintenance-")
	plain := p.says(`health and metrics on (http://\S+)`)
	for n := 1; n <= 2; n++ { // the same event twice is one event, counted
		c.kubectl("taint", "nodes", "node-1", "wavers=x:NoExecute")
		eventually(c.T, func() error { return shows(plain, `berth_eviction_pending\{taint="wavers.*"\} 1`) })
		c.kubectl("taint", "nodes", "node-1", "wavers-")
		eventually(c.T, func() error {
			events, err := c.api.CoreV1().Events("default").List(c.T.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=wavers,reason=TaintManagerEviction"})
			if err == nil && (len(events.Items) == 0 || events.Items[0].Count < int32(n)) {
				err = fmt.Errorf("%d: no such event", n)
			}
			return err
		})
	}
	c.lossOfDevices()
	p.check(func(deploy.Right) bool { return false })
}

// lossOfDevices makes the controller evict two pods because of device taints, one in a
// ResourceSlice and one by a DeviceTaintRule.
func (c *cluster) lossOfDevices() {
	c.Helper()
	c.apply(deviceWork)
	for pod, device := range map[string]string{"broken": "gpu-0", "recalled": "gpu-1"} {
		uid := c.kubectl("get", "pod", pod, "-o", "jsonpath={.metadata.uid}")
		c.kubectl("patch", "resourceclaim", pod, "--subresource=status", "--type=merge", "-p", fmt.Sprintf(`{"status": {
			"allocation": {"devices": {"results": [{"request": "gpu", "driver": "gpu.example.com", "pool": "node-2", "device": %q}]}},
			"reservedFor": [{"resource": "pods", "name": %q, "uid": %q}]}}`, device, pod, uid))
	}
	c.apply(taintOfDevice)
	c.kubectl("wait", "--for=delete", "pod/broken", "pod/recalled", "--timeout=90s")
}

// shows returns nil if a line of a component's metrics matches a pattern.
func shows(url, line string) error {
	body, err := getAs(url+"/metrics", "")
	if err == nil && !regexp.MustCompile(`(?m)^`+line+`$`).MatchString(body) {
		err = fmt.Errorf("the metrics do not show %s", line)
	}
	return err
}

func (c *cluster) webhookUsesItsRights() {
	// Watch-lists are rejected, as by API servers without that feature, so that the webhook must
	// list.
	seen := record(c.T, c.Config,
		&fault{verb: "watch", resource: "namespaces", query: "sendInitialEvents", status: 422, reason: metav1.StatusReasonInvalid, times: -1},
		&fault{verb: "watch", resource: "priorityclasses", query: "sendInitialEvents", status: 422, reason: metav1.StatusReasonInvalid, times: -1},
		&fault{verb: "watch", resource: "runtimeclasses", query: "sendInitialEvents", status: 422, reason: metav1.StatusReasonInvalid, times: -1},
		&fault{verb: "watch", resource: "secrets", query: "sendInitialEvents", status: 422, reason: metav1.StatusReasonInvalid, times: -1},
		&fault{verb: "watch", resource: "mutatingwebhookconfigurations", query: "sendInitialEvents", status: 422, reason: metav1.StatusReasonInvalid, times: -1},
		&fault{verb: "watch", resource: "validatingwebhookconfigurations", query: "sendInitialEvents", status: 422, reason: metav1.StatusReasonInvalid, times: -1})
	p := c.begin(deploy.Webhook, seen, "--namespace=berth-system", "--bind-address=127.0.0.1:0", "--health-bind-address=127.0.0.1:0",
		"--advertise-host=127.0.0.1", "--shutdown-delay=0s")
	url := p.says(`ready (https://\S+)`)
	// Objects that a pod names but the caches lack are read from the API server. A review in an
	// unknown namespace fails before any other read.
	if err := c.review(url, "nowhere", v1.PodSpec{}); err == nil || !strings.Contains(err.Error(), "namespace nowhere: not known yet") {
		c.Errorf("a pod of an unknown namespace: %v", err)
	}
	for _, spec := range []v1.PodSpec{{PriorityClassName: "none"}, {RuntimeClassName: new("none")}} {
		if err := c.review(url, "default", spec); err != nil {
			c.Error(err)
		}
	}
	// The webhook repairs a damaged Secret.
	c.kubectl("patch", "secret", "-n", deploy.Namespace, "berth-webhook", "--type=merge", `-p={"data": {"tls.crt": ""}}`)
	p.check(func(deploy.Right) bool { return false })
}

// shadowUsesItsRights runs a scheduler and a controller as shadows, with the ServiceAccount of the
// shadow overlay.
func (c *cluster) shadowUsesItsRights() {
	manifests, err := fs.ReadFile(deploy.Manifests(), "kustomize/overlays/shadow/shadow-rbac.yaml")
	if err != nil {
		c.Fatal(err)
	}
	c.apply(string(manifests))
	granted, err := deploy.Granted(string(manifests), deploy.Namespace, "berth-shadow")
	if err != nil || len(granted) == 0 {
		c.Fatalf("berth-shadow is granted %v (%v)", granted, err)
	}
	seen := record(c.T, c.Config)
	own := kubeconfig(c.T, seen, c.token("berth-shadow"))
	for what, args := range map[deploy.Part][]string{
		deploy.Scheduler:  {"--leader-elect=false", "--secure-port=0", "--gentle-preemption"},
		deploy.Controller: nil,
	} {
		p := &part{t: c.T, what: what, seen: seen}
		p.start(slices.Concat([]string{string(what), "--shadow", "--kubeconfig", own, "--health-bind-address=127.0.0.1:0"}, args))
	}
	p := &part{t: c.T, what: "shadow", granted: granted, seen: seen}
	p.check(isOfGroups)
}

// isOfGroups reports whether a permission is for pod groups. Their feature gates are off in this
// cluster.
func isOfGroups(r deploy.Right) bool {
	resource, _, _ := strings.Cut(r.Resource, "/")
	return slices.Contains([]string{"workloads", "podgroups", "compositepodgroups"}, resource)
}

// boughtNode is a minimal catalog for what-if provision.
const boughtNode = `apiVersion: v1
kind: Node
metadata: {name: small, annotations: {berth.dev/price: "0.10"}}
status: {allocatable: {cpu: "2", memory: 4Gi, pods: "110"}}
`

// viewIsEnough verifies that the role berth-view suffices for the commands that only read, and
// contains no unused permission.
func (c *cluster) viewIsEnough() {
	granted, err := deploy.RightsOf(deploy.View)
	if err != nil {
		c.Fatal(err)
	}
	c.kubectl("create", "serviceaccount", "asks")
	c.kubectl("create", "clusterrolebinding", "asks", "--clusterrole=berth-view", "--serviceaccount=default:asks")
	seen := record(c.T, c.Config)
	own := kubeconfig(c.T, seen, c.tokenIn("default", "asks"))
	c.kubectl("run", "asked", "--image=nginx", "--overrides", `{"spec": {"schedulerName": "nobody"}}`)
	nodes := filepath.Join(c.T.TempDir(), "nodes.yaml")
	if err := os.WriteFile(nodes, []byte(boughtNode), 0o600); err != nil {
		c.Fatal(err)
	}
	for _, command := range [][]string{
		{"explain", "pod/asked"},
		{"what-if", "drain", "node/node-1", "--ignore-daemonsets", "--force"},
		{"what-if", "provision", "--catalog", nodes}, // also reads NodePools, whether or not the API exists
		{"record", "-o", filepath.Join(c.T.TempDir(), "recording"), "--for", "2s"},
		{"kubectl", "get", "events", "--watch-only", "--request-timeout=1s"},
		{"kubectl", "get", "events"},
	} {
		cmd := exec.Command(filepath.Join(bin, "berth"), append(command, "--kubeconfig", own)...)
		if out, err := cmd.CombinedOutput(); err != nil && !slices.Contains(command, "--watch-only") {
			c.Errorf("berth %s: %v\n%s", strings.Join(command, " "), err, out)
		}
	}
	p := &part{t: c.T, what: deploy.View, granted: granted, seen: seen}
	// Permissions to get objects are exempt: users need them for kubectl, and they permit no more
	// than listing.
	p.check(func(r deploy.Right) bool { return r.Verb == "get" && r.Resource != "namespaces" || isOfGroups(r) })
}
