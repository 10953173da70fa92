package explain_test
import ("testing";"github.com/berth-k8s/berth/internal/inspect/explain";"github.com/berth-k8s/berth/internal/inspect/manifest";"github.com/berth-k8s/berth/internal/inspect/simulate"; v1 "k8s.io/api/core/v1"; metav1 "k8s.io/apimachinery/pkg/apis/meta/v1")
func TestDbg(t *testing.T){
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name:"node-1", Labels: map[string]string{"kubernetes.io/hostname":"node-1"}}, Spec: v1.NodeSpec{Taints: []v1.Taint{{Key:"node.kubernetes.io/unreachable",Effect:"NoSchedule"},{Key:"node.kubernetes.io/unreachable",Effect:"NoExecute"}}}, Status: v1.NodeStatus{Allocatable: amounts("4","8Gi")}}
	n.Status.Allocatable["pods"] = *n.Status.Allocatable.Cpu()
	p := pod("p", nil)
	p.UID, p.ResourceVersion = "", ""
	w, err := simulate.Open(manifest.Assemble("test", []metav1.Object{n, p}), simulate.Options{})
	if err != nil { t.Fatal(err) }
	for _, n := range []string{"p"} {
	one, err := explain.Of(w, explain.Options{Namespace: "default", Name: n})
	if err != nil { t.Fatal(err) }
	for _, s := range one.Suggestions { t.Log(n, "OK ", s.Text, s.Node) }
	for _, s := range one.Withheld { t.Log(n, "WITHHELD ", s.Text, s.Reason) }
	}
}
