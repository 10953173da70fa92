// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eeviction

import (
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-k8s/berth/deploy"
	"github.com/berth-k8s/berth/internal/controller/controllershadow"
	"github.com/berth-k8s/berth/test/internal/nightly"
)

// TestShadowAgreesWithUpstream verifies that Berth's controllers, as a shadow of upstream's and
// with exactly the permissions in the shadow overlay, report the same decisions as upstream: the
// eviction of a pod for a taint, the taint of a not-ready node, and the eviction of another pod for
// that taint.
func TestShadowAgreesWithUpstream(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	c := newClusterWith(t, "--upstream-admission", "--controllers=*,node-lifecycle-controller,taint-eviction-controller")
	c.node("n", nil)
	c.node("well", nil)
	p := startController(t, c.readOnly(), "--shadow", "--shadow-report="+filepath.Join(t.TempDir(), "report.json"))
	c.within(time.Minute, "the shadow knows the cluster", func() bool {
		answer, err := http.Get("http://" + p.address + "/readyz")
		if err != nil {
			return false
		}
		answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
	c.pod("for-taint", "n", tolerates("a", 3))
	c.pod("for-health", "n", tolerates("a"), tolerates(v1.TaintNodeNotReady, 2))
	_, err := c.client.CoreV1().Nodes().Patch(t.Context(), "n", mergePatch, taintPatch("a"), kubectlTaint)
	c.must(err)
	c.within(time.Minute, "evicted by upstream", func() bool { return c.leaves("for-taint") })
	c.condition("n", v1.NodeReady, v1.ConditionFalse)
	c.within(60*time.Second, "evicted by upstream for the node's health", func() bool { return c.leaves("for-health") })

	told := func() controllershadow.Reports {
		answer, err := http.Get("http://" + p.address + "/shadow")
		c.must(err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		c.must(err)
		read, err := controllershadow.Read(text)
		c.must(err)
		return read
	}
	c.within(time.Minute, "both evictions and both taints are compared", func() bool {
		report := told().Controller
		return report.Tallies[controllershadow.Eviction].Decisions == 2 &&
			report.Tallies[controllershadow.Taint].Decisions >= 2 // both may also taint a new node for a moment
	})
	report := told().Controller
	for kind, tally := range report.Tallies {
		if tally.Agreement() != 1 {
			t.Errorf("%s: agreement %v: %+v", kind, tally.Agreement(), report.Differences)
		}
	}

	scrape(c, p, `berth_shadow_lag_seconds_count{kind="eviction"} 2`)
	p.stop()
	if log := p.log.String(); strings.Contains(log, "forbidden") {
		t.Errorf("it lacks a permission:\n%s", log)
	}
}

// readOnly returns a kubeconfig with the permissions in the shadow overlay.
func (c *cluster) readOnly() string {
	c.Helper()
	ctx := c.Context()
	_, err := c.client.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: deploy.Namespace}}, metav1.CreateOptions{})
	c.must(err)
	text, err := fs.ReadFile(deploy.Manifests(), "kustomize/overlays/shadow/shadow-rbac.yaml")
	c.must(err)
	account := ""
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		o, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(document), nil, nil)
		c.must(err)
		if sa, ok := o.(*v1.ServiceAccount); ok {
			account = sa.Name
		}
		c.must(c.create(o))
	}
	token, err := c.client.CoreV1().ServiceAccounts(deploy.Namespace).CreateToken(ctx, account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	c.must(err)
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: c.config.Host, CertificateAuthorityData: c.config.CAData, CertificateAuthority: c.config.CAFile}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	path := filepath.Join(c.TempDir(), "kubeconfig")
	c.must(clientcmd.WriteToFile(*config, path))
	return path
}

func (c *cluster) create(object runtime.Object) error {
	var err error
	switch o := object.(type) {
	case *v1.ServiceAccount:
		_, err = c.client.CoreV1().ServiceAccounts(o.Namespace).Create(c.Context(), o, metav1.CreateOptions{})
	case *rbacv1.ClusterRole:
		_, err = c.client.RbacV1().ClusterRoles().Create(c.Context(), o, metav1.CreateOptions{})
	case *rbacv1.ClusterRoleBinding:
		_, err = c.client.RbacV1().ClusterRoleBindings().Create(c.Context(), o, metav1.CreateOptions{})
	case *rbacv1.Role:
		_, err = c.client.RbacV1().Roles(o.Namespace).Create(c.Context(), o, metav1.CreateOptions{})
	case *rbacv1.RoleBinding:
		_, err = c.client.RbacV1().RoleBindings(o.Namespace).Create(c.Context(), o, metav1.CreateOptions{})
	default:
		text, _ := json.Marshal(object)
		c.Fatalf("what is %s?", text)
	}
	return err
}
