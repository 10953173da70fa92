// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eadmission

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/berth-k8s/berth/controlplane"
	"github.com/berth-k8s/berth/internal/admission/webhook"
)

// TestFailures verifies the statements about a failing webhook in docs/tasks/webhook.md, on an API
// server without Berth's rules.
func TestFailures(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	inOnePlace := func(o *controlplane.Options) { o.DataDir = dir }
	c := start(t, upstreams, inOnePlace)
	c.makeNamespace(t, &v1.Namespace{ObjectMeta: named(system)})
	c.makeNamespace(t, dedicated("group"))
	c.makeNamespace(t, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "opted-out", Labels: map[string]string{webhook.OptOutLabel: "disabled"}}})
	t.Run("RolesOfTheManifestsSuffice", c.rolesSuffice)
	t.Run("KilledAndPodsGoOnWithoutTheRules", c.killed)
	t.Run("KilledAndPodsWaitButTheClusterIsNotLocked", c.killedWithFail)
	t.Run("CertificateExpiresAndIsRenewed", c.certificateExpires)
	t.Run("AuthorityIsTakenOutOfTheConfigurationsAndComesBack", c.authorityTakenOut)
	t.Run("CachesAreCold", c.cold)
	t.Run("TwoReplicasAgree", c.twoReplicas)
	t.Run("APIServerStartsAnew", func(t *testing.T) {
		c.runWebhook(t, webhookOptions())
		c.Stop()
		c = start(t, upstreams, inOnePlace)
		c.getsRules(t)
		c.makeNamespace(t, dedicated("made-since"))
		c.getsRulesIn(t, "made-since")
	})
}

func dedicated(name string) *v1.Namespace {
	return &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"berth.dev/dedicated-nodes": "dedicated=" + name}}}
}

// pod creates a pod with a generated name.
func (c *cluster) pod(ctx context.Context, namespace, prefix string) (*v1.Pod, error) {
	return c.api.CoreV1().Pods(namespace).Create(ctx, &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: prefix},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "nginx"}}},
	}, metav1.CreateOptions{})
}

// getsRules waits until new pods have fields that only Berth's rules set.
func (c *cluster) getsRules(t *testing.T) { t.Helper(); c.getsRulesIn(t, "group") }

func (c *cluster) getsRulesIn(t *testing.T, namespace string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		pod, err := c.pod(ctx, namespace, "ruled-")
		if err == nil && !ruled(pod) {
			err = fmt.Errorf("created without the rules")
		}
		return err
	})
}

// ruled reports whether Berth's rules have assigned the pod to dedicated nodes.
func ruled(pod *v1.Pod) bool {
	return pod.Spec.Affinity != nil && pod.Spec.Affinity.NodeAffinity != nil && len(pod.Spec.Tolerations) == 4
}

// slipsBy verifies that a pod can be created within a time, with the fields set by upstream's
// plugins but not by Berth's rules.
func (c *cluster) slipsBy(t *testing.T, namespace string, within time.Duration) {
	t.Helper()
	began := time.Now()
	pod, err := c.pod(t.Context(), namespace, "slips-by-")
	if err != nil {
		t.Errorf("a pod in %s: %v", namespace, err)
		return
	}
	if ruled(pod) || len(pod.Spec.Tolerations) != 2 {
		t.Errorf("a pod in %s has tolerations %v", namespace, pod.Spec.Tolerations)
	}
	if took := time.Since(began); took > within {
		t.Errorf("a pod in %s took %v, more than %v", namespace, took, within)
	}
}

// slow is the additional time allowed on busy machines.
const slow = 5 * time.Second

// rolesSuffice verifies that the permissions in the manifests suffice for a webhook, including the
// creation of its certificate and configurations.
func (c *cluster) rolesSuffice(t *testing.T) {
	k := c.kubectl(t)
	options := webhookOptions()
	inCluster := webhook.DefaultOptions()
	var manifests strings.Builder
	if err := inCluster.WriteManifests(&manifests, "registry.example.com/berth:v1"); err != nil {
		t.Fatal(err)
	}
	k.apply(manifests.String())
	config := c.ConfigFor("system:serviceaccount:"+system+":"+options.Service, "system:serviceaccounts", "system:authenticated")
	runWebhook(t, config, options)
	c.getsRules(t)
	if err := c.api.CoreV1().Secrets(system).Delete(t.Context(), options.Service, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error { // the webhook observes the deletion and creates the Secret again
		_, err := c.api.CoreV1().Secrets(system).Get(ctx, options.Service, metav1.GetOptions{})
		return err
	})
	c.getsRules(t)
}

func (c *cluster) killed(t *testing.T) {
	p := c.startProcess(t)
	c.getsRules(t)
	p.kill()
	c.slipsBy(t, "group", slow)
	c.startProcess(t, "--bind-address", p.address)
	c.getsRules(t)
}

func (c *cluster) killedWithFail(t *testing.T) {
	p := c.startProcess(t, "--failure-policy=Fail")
	c.getsRules(t)
	leaving, err := c.pod(t.Context(), "group", "leaving-")
	if err != nil {
		t.Fatal(err)
	}
	pods := c.api.CoreV1().Pods("group")
	finalize := func(list string) error {
		_, err := pods.Patch(t.Context(), leaving.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":`+list+`}}`), metav1.PatchOptions{})
		return err
	}
	if err := finalize(`["example.com/wait"]`); err != nil {
		t.Fatal(err)
	}
	p.kill()
	if _, err := c.pod(t.Context(), "group", "x-"); err == nil || !strings.Contains(err.Error(), `failed calling webhook "pods.admission.berth.dev"`) {
		t.Errorf("a pod is created with %v", err)
	}
	// The webhook does not affect the namespaces needed to start a cluster and the webhook itself.
	for _, namespace := range []string{metav1.NamespaceSystem, system, "opted-out"} {
		c.makeNamespace(t, &v1.Namespace{ObjectMeta: named(namespace)})
		c.slipsBy(t, namespace, slow)
	}
	// Nodes can be created and tainted.
	node, err := c.api.CoreV1().Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "n-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: "a", Effect: v1.TaintEffectNoExecute})
	if _, err := c.api.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
	// Pods can be deleted, and their finalizers can be removed.
	if err := pods.Delete(t.Context(), leaving.Name, *metav1.NewDeleteOptions(0)); err != nil {
		t.Error(err)
	}
	if err := finalize("null"); err != nil {
		t.Error(err)
	}
	if _, err := pods.Get(t.Context(), leaving.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the pod is still there: %v", err)
	}
	c.startProcess(t, "--bind-address", p.address)
	c.getsRules(t)
}

// certificateExpires sets the webhook's clock to the past, so that its certificate has expired for
// the API server. It verifies that the webhook renews the certificate after its clock is right
// again.
func (c *cluster) certificateExpires(t *testing.T) {
	if err := c.api.CoreV1().Secrets(system).Delete(t.Context(), "berth-webhook", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	clock := testingclock.NewFakeClock(time.Now().AddDate(0, -6, 0))
	options := webhookOptions()
	options.Clock = clock
	c.runWebhook(t, options)
	c.slipsBy(t, "group", slow)
	if options.FailurePolicy != "Ignore" {
		t.Errorf("by default pods wait: %s", options.FailurePolicy)
	}
	clock.SetTime(time.Now())
	// The webhook may just have checked the certificate at the old time. The next check follows a
	// minute later, so advance the clock by a minute.
	later := time.AfterFunc(5*time.Second, func() { clock.Step(time.Minute) })
	defer later.Stop()
	c.getsRules(t)
}

func (c *cluster) authorityTakenOut(t *testing.T) {
	c.runWebhook(t, webhookOptions())
	c.getsRules(t)
	api := c.api.AdmissionregistrationV1().MutatingWebhookConfigurations()
	if _, err := api.Patch(t.Context(), "berth-webhook", types.StrategicMergePatchType,
		[]byte(`{"webhooks":[{"name":"pods.admission.berth.dev","clientConfig":{"caBundle":null}}]}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.getsRules(t)
	if err := api.Delete(t.Context(), "berth-webhook", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.getsRules(t)
}

// cold replaces a ready webhook by another webhook without permission to read runtime classes, so
// that its caches are not synced.
func (c *cluster) cold(t *testing.T) {
	brief := webhookOptions()
	brief.Timeout = time.Second
	w, stop := c.runWebhook(t, brief)
	c.getsRules(t)
	stop()
	c.grant(t, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets", "namespaces"}, Verbs: []string{"*"}},
		rbacv1.PolicyRule{APIGroups: []string{"scheduling.k8s.io"}, Resources: []string{"priorityclasses"}, Verbs: []string{"*"}})

	options := webhookOptions()
	options.Address = w.Address()
	half, err := webhook.New(c.ConfigFor("half"), options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- half.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	const notKnown = "namespaces, priority classes and runtime classes are not known yet"
	eventually(t, func(context.Context) error {
		if missing := half.NotReady(); missing != notKnown {
			return fmt.Errorf("not ready: %q", missing)
		}
		return nil
	})
	// After its timeout the webhook responds with an error: the pod is created without any of the
	// rules.
	c.slipsBy(t, "group", 2*options.Timeout+slow)

	c.grant(t, rbacv1.PolicyRule{APIGroups: []string{"node.k8s.io", "admissionregistration.k8s.io"}, Resources: []string{"*"}, Verbs: []string{"*"}})
	c.getsRules(t)
	<-half.Ready()
}

// grant grants permissions to the user "half".
func (c *cluster) grant(t *testing.T, rules ...rbacv1.PolicyRule) {
	t.Helper()
	role, err := c.api.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "half-"}, Rules: rules}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.api.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: named(role.Name), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "half"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) twoReplicas(t *testing.T) {
	if err := c.api.CoreV1().Secrets(system).Delete(t.Context(), "berth-webhook", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	first, stop := c.runWebhook(t, webhookOptions())
	second, _ := c.runWebhook(t, webhookOptions())
	if a, b := certificateOf(t, first), certificateOf(t, second); !a.Equal(b) {
		t.Errorf("the replicas serve with different certificates: %s, %s", a.SerialNumber, b.SerialNumber)
	}
	c.getsRules(t)
	stop()
	c.getsRules(t) // the configurations refer to the remaining webhook
}

// certificateOf returns the certificate that a webhook presents.
func certificateOf(t *testing.T, w *webhook.Webhook) *x509.Certificate {
	t.Helper()
	c, err := tls.Dial("tcp", w.Address(), &tls.Config{InsecureSkipVerify: true}) // compared, not trusted
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0]
}

// TestNoPodSlipsByWhileTheAPIServerStarts verifies that Berth's rules apply to pods created from
// the API server's first response on, before its caches are synced. The configured default
// tolerations for lost nodes must apply as well.
func TestNoPodSlipsByWhileTheAPIServerStarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	inOnePlace := func(o *controlplane.Options) { o.DataDir = dir }
	c := start(t, inOnePlace)
	c.makeNamespace(t, dedicated("group"))
	if _, err := c.api.SchedulingV1().PriorityClasses().Create(t.Context(), &schedulingv1.PriorityClass{
		ObjectMeta: named("usual"), Value: 10, GlobalDefault: true,
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Stop()

	ctx, cancel := context.WithCancel(t.Context())
	type attempt struct {
		pod *v1.Pod
		err error
	}
	done := make(chan []attempt)
	go func() {
		var all []attempt
		for ctx.Err() == nil {
			pod, err := c.pod(ctx, "group", "early-") // the API server has the same port after the restart
			all = append(all, attempt{pod, err})
		}
		done <- all
	}()
	c = start(t, inOnePlace, func(o *controlplane.Options) {
		o.Rules.NotReadySeconds, o.Rules.UnreachableSeconds = new(int64(30)), new(int64(0))
	})
	cancel()
	attempts := <-done
	created := slices.DeleteFunc(slices.Clone(attempts), func(a attempt) bool { return a.err != nil })
	for _, a := range created {
		if !ruled(a.pod) || *a.pod.Spec.Priority != 10 {
			t.Errorf("created too early: priority %d, affinity %v, tolerations %v", *a.pod.Spec.Priority, a.pod.Spec.Affinity, a.pod.Spec.Tolerations)
		}
	}
	pod, err := c.pod(t.Context(), "group", "seconds-")
	if err != nil || *pod.Spec.Tolerations[0].TolerationSeconds != 30 || *pod.Spec.Tolerations[1].TolerationSeconds != 0 {
		t.Errorf("configured seconds do not show in %v, %v", pod.Spec.Tolerations, err)
	}
	t.Logf("%d tries, %d pods created before the API server said that it was ready", len(attempts), len(created))
}
