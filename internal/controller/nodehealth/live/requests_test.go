package live

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

// TestWebhookThatIsGoneDelaysTaints has the API server wait for a webhook for the longest time that
// it can be told to, and then write the node. Its pods are not to stay until the webhook is back.
func TestWebhookThatIsGoneDelaysTaints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fakeapi.New()
		api.Put(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
		r := &requests{client: api.Client()}
		node, err := r.client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		api.SetFault(func(*http.Request) fakeapi.Fault { return fakeapi.Fault{Late: 30 * time.Second} })
		answer := r.carryOut(t.Context(), nodehealth.WriteNode{
			Node: "n", UID: node.UID, ResourceVersion: node.ResourceVersion, SetTaints: true,
			Taints: []v1.Taint{{Key: v1.TaintNodeUnreachable, Effect: v1.TaintEffectNoExecute}},
		})
		if answer.Outcome != nodehealth.OK || answer.Node == nil || len(answer.Node.Taints) != 1 {
			t.Errorf("answered %+v, want the node with its taint", answer)
		}
	})
}
