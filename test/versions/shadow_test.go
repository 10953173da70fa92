// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package versions

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-k8s/berth/deploy"
	"github.com/berth-k8s/berth/internal/controller/controllershadow"
	"github.com/berth-k8s/berth/test/internal/binaries"
)

var (
	shadowPlacements = flag.Int("shadow.placements", 300, "TestShadow: pods that kube-scheduler places")
	shadowFlaps      = flag.Int("shadow.flaps", 20, "TestShadow: NoExecute taints that come and go")
	shadowFailures   = flag.Int("shadow.failures", 6, "TestShadow: nodes that fail and recover")
	shadowAgreement  = flag.Float64("shadow.agreement", 0.9, "TestShadow: what share of evictions and taints both sides must decide within a minute; less on a machine that is busy")
	shadowRate       = flag.Int("shadow.rate", 20, "TestShadow: pods a second")
)

// shadowAccount is the user of both shadows.
const shadowAccount = "system:serviceaccount:" + deploy.Namespace + ":berth-shadow"

// TestShadow verifies that the shadows of the scheduler and the controllers, running alongside the
// release's kube-scheduler and kube-controller-manager with the arguments and the ServiceAccount of
// the overlay, write nothing. During the test, pods are created and end, taints are added and
// removed, and nodes fail. Then the API server's audit log must contain only get, list and watch
// requests of the shadows, none of them forbidden, and writes attempted with their token must fail.
func TestShadow(t *testing.T) {
	if *minors == "" {
		t.Skip("no versions were named: see -versions")
	}
	work := t.TempDir()
	berth, err := binaries.BuildIn(work, "../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, named := range strings.Split(*minors, ",") {
		t.Run(named, func(t *testing.T) {
			release, bin := built(t, named)
			dir := filepath.Join(folder(t, *logs, work), release, "shadow")
			flags, log, err := audited(dir)
			if err != nil {
				t.Fatal(err)
			}
			c := startPlane(t, release, bin, berth, dir, flags...)
			secure, controllers := c.secure(c.kubeconfigOf(controllerManager, c.token(controllerManager)))
			c.beginControllers(slices.Concat(controllerPace, secure,
				[]string{"--controllers=*", "--kube-api-qps=1000", "--kube-api-burst=1000", "--terminated-pod-gc-threshold=100"})...)
			secure, scheduler := c.secure(c.kubeconfigOf(kubeScheduler, c.token(kubeScheduler)))
			c.beginUpstreamScheduler(secure...)
			reports := c.shadowed()
			c.knows("kube-scheduler", c.read(scheduler, c.token(administrator)), "scheduler_")
			c.knows("kube-controller-manager", c.read(controllers, c.token(administrator)), "node_collector_", "taint_eviction_controller_")
			c.stop()
			c.readsOnly(log)
			c.compares(reports)
		})
	}
}

// controllerPace contains flags for upstream's and Berth's controllers, so that both detect a
// failed node at the same time. The eviction rate is high, because in this test several nodes of a
// zone fail together.
var controllerPace = []string{"--node-monitor-grace-period=40s", "--node-eviction-rate=1"}

// shadowed runs the load with shadows, tries the actions that the shadows must not be able to do,
// and returns the files of the shadows' reports.
func (c *cluster) shadowed() (reports []string) {
	nodes := max(12, 2**shadowFailures)
	c.kubectl("apply", "-k", filepath.Join(manifests, "overlays/shadow"))
	c.part("nodes", "nodes", c.kubeconfig, "--count", fmt.Sprint(nodes), "--lease-renew-interval", "5s").says(`(?m)^ready`)
	scheduler, controller, reports := c.beginShadows()
	began := time.Now()
	load := &load{cluster: c.in(c.T, "load"), nodes: nodes, placements: *shadowPlacements, rate: *shadowRate, flaps: *shadowFlaps, failures: *shadowFailures}
	if err := load.play(); err != nil {
		c.Fatal(err)
	}
	load.placed()
	c.Logf("%s: %d pods placed, %d flaps, %d of %d nodes failed and recovered, in %.0f s",
		c.release, load.placements, load.flaps, load.failures, nodes, time.Since(began).Seconds())
	time.Sleep(controllershadow.Patience + controllershadow.Same) // wait until the last decisions are judged
	for _, p := range []*process{scheduler, controller} {
		if code := p.stop(); code != 0 {
			c.Errorf("%s: exit code %d:\n%s", p.name, code, last(p.said(), 10))
		}
		c.noErrorsOf(p)
	}
	c.mayNotWrite()
	return reports
}

// beginUpstreamScheduler starts the release's kube-scheduler with a higher request rate, because
// its default of 50 requests per second would limit the load.
func (c *cluster) beginUpstreamScheduler(flags ...string) {
	c.Helper()
	c.write(c.path("upstream.yaml"), fmt.Appendf(nil, `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: %s, qps: 1000, burst: 1000}
leaderElection: {leaderElect: false}
`, c.kubeconfigOf(kubeScheduler, c.token(kubeScheduler))))
	c.begin("kube-scheduler", filepath.Join(c.bin, "kube-scheduler"), append([]string{"--config", c.path("upstream.yaml")}, flags...)...)
}

// secure returns flags with which an upstream component serves its metrics to the administrator,
// and the address of the metrics.
func (c *cluster) secure(kubeconfig string) (flags []string, url string) {
	c.Helper()
	port := c.freePorts(1)[0]
	return []string{"--bind-address=127.0.0.1", "--secure-port=" + port, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig},
		"https://127.0.0.1:" + port + "/metrics"
}

// beginShadows starts both shadows with the arguments in the overlay's Deployment, waits until they
// have synced, and also returns the files of their reports.
func (c *cluster) beginShadows() (scheduler, controller *process, reports []string) {
	c.Helper()
	kubeconfig := c.accountOf("shadow")
	c.write(c.path("shadow-scheduler.yaml"), []byte(c.kubectl("get", "configmap", "-n", deploy.Namespace, "berth-shadow", "-o", `jsonpath={.data.scheduler\.yaml}`)))
	deployed, err := c.client.AppsV1().Deployments(deploy.Namespace).Get(c.Context(), "berth-shadow", metav1.GetOptions{})
	if err != nil {
		c.Fatal(err)
	}
	here := strings.NewReplacer("/etc/berth/scheduler.yaml", c.path("shadow-scheduler.yaml"), "/reports/", c.path("shadow-"), "0.0.0.0:10357", "127.0.0.1:0")
	args := func(name string) (args []string) {
		for _, container := range deployed.Spec.Template.Spec.Containers {
			for _, arg := range container.Args {
				if container.Name == name && arg != name { // part adds the subcommand
					args = append(args, here.Replace(arg))
				}
			}
		}
		return args
	}
	scheduler = c.part("shadow-scheduler", "scheduler", kubeconfig, append(args("scheduler"), "--health-bind-address=127.0.0.1:0")...)
	controller = c.part("shadow-controller", "controller", kubeconfig, append(args("controller"), controllerPace...)...)
	c.knowsTheCluster(scheduler)
	c.knowsTheCluster(controller)
	return scheduler, controller, []string{c.path("shadow-scheduler.json"), c.path("shadow-controller.json")}
}

// readsOnly verifies by the audit log that the shadows have only sent read requests, and that none
// was forbidden. It ignores the attempts by mayNotWrite, which it identifies by their user agent.
func (c *cluster) readsOnly(log string) {
	all, tried := kinds{}, map[string]bool{}
	bound := 0
	if err := requests(log, func(r *request) {
		if r.UserAgent == burglar {
			if r.ResponseStatus.Code == 403 {
				tried[r.Verb+" "+r.what()] = true
			}
			return
		}
		all.add(r)
		if r.User.Username != shadowAccount {
			if r.what() == "pods/binding" && r.User.Username == kubeScheduler && r.ResponseStatus.Code == 201 {
				bound++
			}
			return
		}
		if r.writes() {
			c.Errorf("a shadow writes: %s %s: %d", r.Verb, r.URI, r.ResponseStatus.Code)
		}
	}); err != nil {
		c.Fatal(err)
	}
	var text strings.Builder
	all.write(&text, func(user string) bool { return user == shadowAccount })
	c.Logf("%s: requests of the shadows in the audit log:\n%s", c.release, &text)
	reads := 0
	for kind, n := range all {
		if kind.user == shadowAccount {
			reads += n
			if kind.refused() {
				c.Errorf("the shadows lack a permission: %+v", kind)
			}
		}
	}
	// Verify that the log is complete: it must contain the bindings by kube-scheduler, reads by the
	// shadows, and the attempts by mayNotWrite.
	if bound < *shadowPlacements || reads == 0 || len(tried) < len(burglaries) {
		c.Errorf("the audit log has %d bindings of %d, %d reads, %d of %d attempts: is it complete?", bound, *shadowPlacements, reads, len(tried), len(burglaries))
	}
	c.Logf("%s: %d bindings by kube-scheduler, %d requests of the shadows, none of them a write; %d attempts to write in their name, all refused",
		c.release, bound, reads, len(tried))
}

// compares verifies the shadows' reports: the agreement for each kind of decision, and the number
// of decisions.
func (c *cluster) compares(files []string) {
	c.Log(c.berthSays(append([]string{"shadow", "report"}, files...)...))
	var all controllershadow.Reports
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			c.Fatal(err)
		}
		read, err := controllershadow.Read(text)
		if err != nil {
			c.Fatal(err)
		}
		all.Merge(read)
	}
	if all.Controller == nil || all.Scheduler == nil {
		c.Fatalf("reports are missing: %+v", all)
	}
	for kind, tally := range all.Controller.Tallies {
		c.Logf("%s: %s: %d decisions, agreement %.4f, %v", c.release, kind, tally.Decisions, tally.Agreement(), tally.Outcomes)
		if tally.Decisions == 0 || tally.Agreement() < *shadowAgreement {
			c.Errorf("%s: %d decisions, agreement %.3f, want %v", kind, tally.Decisions, tally.Agreement(), *shadowAgreement)
		}
	}
	if taints := all.Controller.Tallies[controllershadow.Taint].Decisions; taints < 2**shadowFailures {
		c.Errorf("%d taints compared for %d failures", taints, *shadowFailures)
	}
	s := all.Scheduler
	c.Logf("%s: placement: %d compared, %d on a best node, %d not (mean gain %.2f, largest %d), %d on a node that Berth would have refused",
		c.release, s.Pods, s.Best, s.Worse, s.MeanGainWorse, s.MaxGain, s.Rejected)
	if s.Pods < *shadowPlacements*9/10 {
		c.Errorf("%d placements compared, of %d", s.Pods, *shadowPlacements)
	}
}

// burglar is the user agent of the attempts by mayNotWrite.
const burglar = "burglar"

// burglary is an action that a shadow must not be able to do.
type burglary struct {
	what string
	try  func(c *cluster, client kubernetes.Interface) error
}

// burglaries lists the writes of a scheduler and of controllers, and ways to gain more permissions
// by a token.
var burglaries = []burglary{
	{"bind a pod", func(c *cluster, client kubernetes.Interface) error {
		return client.CoreV1().Pods("default").Bind(c.Context(), &v1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Target: v1.ObjectReference{Kind: "Node", Name: "node-1"}}, metav1.CreateOptions{})
	}},
	{"delete a pod", func(c *cluster, client kubernetes.Interface) error {
		return client.CoreV1().Pods("default").Delete(c.Context(), "p", metav1.DeleteOptions{})
	}},
	{"evict a pod", func(c *cluster, client kubernetes.Interface) error {
		return client.PolicyV1().Evictions("default").Evict(c.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}})
	}},
	{"change a pod's status", func(c *cluster, client kubernetes.Interface) error {
		_, err := client.CoreV1().Pods("default").Patch(c.Context(), "p", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{}, "status")
		return err
	}},
	{"taint a node", func(c *cluster, client kubernetes.Interface) error {
		_, err := client.CoreV1().Nodes().Patch(c.Context(), "node-1", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{})
		return err
	}},
	{"change a node's status", func(c *cluster, client kubernetes.Interface) error {
		_, err := client.CoreV1().Nodes().Patch(c.Context(), "node-1", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{}, "status")
		return err
	}},
	{"write an event", func(c *cluster, client kubernetes.Interface) error {
		_, err := client.EventsV1().Events("default").Create(c.Context(), &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e"}}, metav1.CreateOptions{})
		return err
	}},
	{"take kube-scheduler's Lease", func(c *cluster, client kubernetes.Interface) error {
		_, err := client.CoordinationV1().Leases("kube-system").Create(c.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "kube-scheduler"}}, metav1.CreateOptions{})
		return err
	}},
	{"read secrets", func(c *cluster, client kubernetes.Interface) error {
		_, err := client.CoreV1().Secrets("kube-system").List(c.Context(), metav1.ListOptions{})
		return err
	}},
	{"have a token of another account", func(c *cluster, client kubernetes.Interface) error {
		_, err := client.CoreV1().ServiceAccounts("kube-system").CreateToken(c.Context(), "node-controller", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		return err
	}},
	{"create a pod with another account", func(c *cluster, client kubernetes.Interface) error {
		_, err := client.CoreV1().Pods("kube-system").Create(c.Context(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1.PodSpec{ServiceAccountName: "node-controller"}}, metav1.CreateOptions{})
		return err
	}},
	{"run a command in its own pod", func(c *cluster, client kubernetes.Interface) error {
		return client.CoreV1().RESTClient().Post().Namespace(deploy.Namespace).Resource("pods").Name("p").SubResource("exec").Do(c.Context()).Error()
	}},
	{"change its own Deployment", func(c *cluster, client kubernetes.Interface) error {
		_, err := client.AppsV1().Deployments(deploy.Namespace).Update(c.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "berth-shadow"}}, metav1.UpdateOptions{})
		return err
	}},
	{"add to its own role", func(c *cluster, client kubernetes.Interface) error {
		_, err := client.RbacV1().ClusterRoles().Patch(c.Context(), "berth-shadow", types.JSONPatchType,
			[]byte(`[{"op": "add", "path": "/rules/-", "value": {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}}]`), metav1.PatchOptions{})
		return err
	}},
	{"bind itself to a larger role", func(c *cluster, client kubernetes.Interface) error {
		_, err := client.RbacV1().ClusterRoleBindings().Create(c.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "b"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "berth-shadow", Namespace: deploy.Namespace}},
		}, metav1.CreateOptions{})
		return err
	}},
	{"review somebody else's token", func(c *cluster, client kubernetes.Interface) error {
		_, err := client.AuthenticationV1().TokenReviews().Create(c.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "t"}}, metav1.CreateOptions{})
		return err
	}},
	{"ask what others may do", func(c *cluster, client kubernetes.Interface) error {
		_, err := client.AuthorizationV1().SubjectAccessReviews().Create(c.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "u"}}, metav1.CreateOptions{})
		return err
	}},
}

// mayNotWrite verifies that the API server forbids all burglaries with a shadow's token.
func (c *cluster) mayNotWrite() {
	config, err := clientcmd.BuildConfigFromFlags("", c.path("berth-shadow.kubeconfig"))
	if err != nil {
		c.Fatal(err)
	}
	config.QPS, config.UserAgent = -1, burglar
	as, err := kubernetes.NewForConfig(config)
	if err != nil {
		c.Fatal(err)
	}
	for _, b := range burglaries {
		if err := b.try(c, as); !apierrors.IsForbidden(err) {
			c.Errorf("a shadow may %s: %v", b.what, err)
		}
	}
	config.Impersonate = rest.ImpersonationConfig{UserName: administrator, Groups: []string{"system:masters"}}
	if as, err = kubernetes.NewForConfig(config); err != nil {
		c.Fatal(err)
	}
	if _, err := as.CoreV1().Nodes().Get(c.Context(), "node-1", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		c.Errorf("a shadow may act as the administrator: %v", err)
	}
}
