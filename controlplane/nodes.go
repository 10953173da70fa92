package controlplane

import (
	"context"
	"crypto/rand"
	"fmt"
	"math/big"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
)

// This file is how machines become nodes of the cluster: a bootstrap token lets a machine ask for a
// node's certificate, upstream's controllers approve and sign it, and the machine renews it as that
// node.

const (
	// nodeBootstrapFile is a kubeconfig with which a machine asks for a node's certificate, and no
	// more.
	nodeBootstrapFile = "node-bootstrap.kubeconfig"
	// nodeBootstrapLife is how long it is good for; the next start writes another.
	nodeBootstrapLife = 24 * time.Hour
	// bootstrappers is the group of those that have such a token.
	bootstrappers = bootstrapapi.BootstrapDefaultGroup + ":berth"

	// kubeletClientUser is the API server towards nodes.
	kubeletClientUser = "kube-apiserver-kubelet-client"
)

// identityBindings let machines become nodes, nodes renew their certificates, and the API server
// use nodes. Which certificates there are the controllers of upstream decide that approve and sign.
// The names of the roles are upstream's.
func identityBindings() []rbacv1.ClusterRoleBinding {
	bind := bindClusterRole
	return []rbacv1.ClusterRoleBinding{
		bind("berth:node-bootstrapper", "system:node-bootstrapper", rbacv1.GroupKind, bootstrappers),
		bind("berth:node-autoapprove-bootstrap", "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
			rbacv1.GroupKind, bootstrappers),
		bind("berth:node-autoapprove-renewal", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
			rbacv1.GroupKind, user.NodesGroup),
		bind("berth:kubelet-api-admin", "system:kubelet-api-admin", rbacv1.UserKind, kubeletClientUser),
	}
}

// bindClusterRole binds a cluster role to one user or group.
func bindClusterRole(name, role, kind, subject string) rbacv1.ClusterRoleBinding {
	return rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: kind, Name: subject}},
	}
}

// writeNodeBootstrap makes a bootstrap token and writes the kubeconfig that has it. It is called
// with every start. Tokens of earlier starts end by themselves: the token cleaner deletes them. The
// kubeconfig has no user name: the token is all there is.
func (c *controlPlane) writeNodeBootstrap(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.api.loopbackConfig())
	if err != nil {
		return err
	}

	// The lengths are those of a bootstrap token: ID, a dot, secret.
	id, err := randomWord(6)
	if err != nil {
		return err
	}

	secret, err := randomWord(16)
	if err != nil {
		return err
	}

	// The token is a Secret of kube-system, as kubeadm's are; the API server looks it up there.
	_, err = client.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: bootstrapapi.BootstrapTokenSecretPrefix + id},
		Type:       bootstrapapi.SecretTypeBootstrapToken,
		StringData: map[string]string{
			bootstrapapi.BootstrapTokenIDKey:               id,
			bootstrapapi.BootstrapTokenSecretKey:           secret,
			bootstrapapi.BootstrapTokenExpirationKey:       time.Now().Add(nodeBootstrapLife).UTC().Format(time.RFC3339),
			bootstrapapi.BootstrapTokenUsageAuthentication: "true",
			// Besides the default group of bootstrap tokens, which has no permissions here.
			bootstrapapi.BootstrapTokenExtraGroupsKey: bootstrappers,
			bootstrapapi.BootstrapTokenDescriptionKey: "for nodes of berth up",
		},
	}, metav1.CreateOptions{})

	if err != nil {
		return fmt.Errorf("bootstrap token: %w", err)
	}
	// A token instead of a certificate: it says nothing of which node it is for.
	config := clientcmdapi.NewConfig()
	config.Clusters[kubeconfigName] = &clientcmdapi.Cluster{Server: c.server, CertificateAuthorityData: c.pki.cluster.pem}
	config.AuthInfos[kubeconfigName] = &clientcmdapi.AuthInfo{Token: id + "." + secret}
	config.Contexts[kubeconfigName] = &clientcmdapi.Context{Cluster: kubeconfigName, AuthInfo: kubeconfigName}
	config.CurrentContext = kubeconfigName

	content, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	return writeAtomically(c.dir.pathOf(nodeBootstrapFile), content, 0o600)
}

// randomWord is of letters and digits, as bootstrap tokens are.
func randomWord(length int) (string, error) {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	word := make([]byte, length)
	for i := range word {
		n, err := rand.Int(rand.Reader, big.NewInt(int64(len(letters))))
		if err != nil {
			return "", err
		}
		word[i] = letters[n.Int64()]
	}
	return string(word), nil
}
