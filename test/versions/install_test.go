// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package versions

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/deploy"
)

// parts holds Berth's processes: the leading scheduler and controller, and all processes so far.
type parts struct {
	scheduler, controller *process
	schedulerURL          string // HTTPS address
	all                   []*process
}

const manifests = "../../deploy/kustomize"

// install installs Berth as described in docs/tasks/install.md, instead of kube-scheduler and with
// the given components of the kustomization. Since the pods of the manifests are only simulated, it
// runs Berth's components as processes with the tokens of their ServiceAccounts.
func (c *cluster) install(components ...string) {
	c.Helper()
	folder := c.path("mine")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		c.Fatal(err)
	}
	deployed, err := filepath.Abs(manifests)
	if err == nil {
		deployed, err = filepath.Rel(folder, deployed) // kustomize requires a relative path
	}
	if err != nil {
		c.Fatal(err)
	}
	text := fmt.Sprintf(`
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [%s/overlays/replace-default]
components:
`, deployed)
	for _, component := range components {
		text += fmt.Sprintf("- %s/components/%s\n", deployed, component)
	}
	c.write(filepath.Join(folder, "kustomization.yaml"), []byte(text))
	c.kubectl("apply", "-k", folder)
	c.write(c.path("scheduler.yaml"), []byte(c.kubectl("get", "configmap", "-n", deploy.Namespace, "berth-scheduler", "-o", `jsonpath={.data.scheduler\.yaml}`)))

	c.parts.controller = c.beginController("controller-1")
	nodes := c.part("nodes", "nodes", c.kubeconfig, "--count", "6", "--cpu", "4", "--memory", "8Gi", "--lease-renew-interval", "1s")
	nodes.says(`(?m)^ready`)
	c.kubectl("label", "node", controlPlaneNode, "node-role.kubernetes.io/control-plane=")
	c.parts.scheduler = c.beginScheduler("scheduler-1")
	c.parts.schedulerURL = c.parts.scheduler.says(`health and metrics on (https://\S+)`)
	c.parts.scheduler.says(`(?m)^ready`)
}

// beginWebhook starts a webhook, which creates its webhook configurations itself.
func (c *cluster) beginWebhook() {
	c.Helper()
	c.part("webhook", "webhook", c.accountOf(deploy.Webhook), "--namespace", deploy.Namespace, "--bind-address=127.0.0.1:0", "--health-bind-address=127.0.0.1:0",
		"--advertise-host=127.0.0.1", "--shutdown-delay=0s").says(`ready https://\S+`)
}

// controlPlaneNode is the node for the pods of Berth's scheduler and controller.
const controlPlaneNode = "node-6"

// part starts one of Berth's components.
func (c *cluster) part(name, command, kubeconfig string, args ...string) *process {
	c.Helper()
	p := c.begin(name, filepath.Join(c.berth, "berth"), append([]string{command, "--kubeconfig", kubeconfig}, args...)...)
	c.parts.all = append(c.parts.all, p)
	return p
}

// accountOf writes a kubeconfig with a token of a component's ServiceAccount.
func (c *cluster) accountOf(what deploy.Part) string {
	c.Helper()
	account := "berth-" + string(what)
	lasts := int64(7200)
	request, err := c.client.CoreV1().ServiceAccounts(deploy.Namespace).CreateToken(c.Context(), account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &lasts}}, metav1.CreateOptions{})
	if err != nil {
		c.Fatal(err)
	}
	return c.kubeconfigOf(account, request.Status.Token)
}

// beginScheduler starts a scheduler with the configuration in the manifests and the token of its
// ServiceAccount.
func (c *cluster) beginScheduler(name string) *process {
	c.Helper()
	return c.beginSchedulerAs(name, c.accountOf(deploy.Scheduler))
}

func (c *cluster) beginSchedulerAs(name, kubeconfig string) *process {
	c.Helper()
	return c.part(name, "scheduler", kubeconfig, "--config", c.path("scheduler.yaml"), "--bind-address=127.0.0.1", "--health-bind-address=127.0.0.1:0")
}

// beginController starts a controller with a short Lease that quickly detects nodes without
// heartbeats.
func (c *cluster) beginController(name string) *process {
	c.Helper()
	p := c.part(name, "controller", c.accountOf(deploy.Controller), "--leader-elect-resource-namespace", deploy.Namespace, "--health-bind-address=127.0.0.1:0",
		"--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=500ms",
		"--node-monitor-period=500ms", "--node-monitor-grace-period=10s", "--node-eviction-rate=10")
	p.says(`health and metrics on http://\S+`)
	return p
}

func (c *cluster) takesEveryManifest() {
	for _, overlay := range []string{"second-scheduler", "replace-default"} {
		out, code := c.tryBerth("", "kubectl", "apply", "--dry-run=server", "--validate=strict", "-k", filepath.Join(manifests, "overlays", overlay))
		if code != 0 || strings.Contains(out, "Warning") {
			c.Errorf("%s: exit code %d\n%s", overlay, code, out)
		}
	}
}

// placesItself verifies that Berth places the pods of its manifests, and that the pods of the
// scheduler and the controller are on the control plane node.
func (c *cluster) placesItself() {
	c.kubectl("wait", "-n", deploy.Namespace, "--for=condition=Available", "deployment", "--all", "--timeout=90s")
	const replacing = "app.kubernetes.io/component in (scheduler, controller)"
	for node := range strings.FieldsSeq(c.kubectl("get", "pods", "-n", deploy.Namespace, "-l", replacing, "-o", "jsonpath={.items[*].spec.nodeName}")) {
		if node != controlPlaneNode {
			c.Errorf("a pod of Berth's is on %s", node)
		}
	}
}

// noErrors verifies that the logs of Berth's components report no unknown, forbidden or deprecated
// requests.
func (c *cluster) noErrors() {
	for _, p := range c.parts.all {
		c.noErrorsOf(p)
	}
}

func (c *cluster) noErrorsOf(p *process) {
	said := map[string]bool{}
	for line := range strings.Lines(p.said()) {
		if what := unserved.FindString(line); what != "" && !said[what] {
			said[what] = true
			continue
		}
		if troubled.MatchString(line) {
			c.Errorf("%s says: %s", p.name, strings.TrimSpace(line))
		}
	}
}

// unserved matches the messages that Berth logs once if the API server does not serve device
// objects or forbids reading them.
var unserved = regexp.MustCompile(`DeviceTaintRules are not followed|Cannot list a resource, so its device taints evict no pods" resource="\w+"`)

// troubled matches errors logged by klog and slog, panics, warnings in responses of the API server,
// and rejected requests, which Berth logs at a lower level before a retry.
var troubled = regexp.MustCompile(`^[EF]\d{4} |level=ERROR|^panic|^W\d{4} .* warnings\.go|is forbidden|could not find the requested resource|unknown field`)
