// cert-manager's own control loops for certificates, issuers of an authority and self-signed ones.
//
// Its program is a module of its own, which the module proxy does not have; its loops are in the main
// module. ACME, Vault and Venafi are left out, and so is the webhook: the API server checks the
// schema of the objects, not what the webhook checks beyond it.
//
// certmanager KUBECONFIG runs until SIGTERM.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/cert-manager/cert-manager/pkg/controller"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
)

const workersPerLoop = 2

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: certmanager KUBECONFIG")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	options := controller.ContextOptions{Kubeconfig: os.Args[1]}
	options.KubernetesAPIQPS = 50
	options.KubernetesAPIBurst = 100
	options.ClusterResourceNamespace = "cert-manager"
	options.CertificateRequestMinimumBackoffDuration = time.Hour
	options.CopiedAnnotationPrefixes = []string{"*", "-kubectl.kubernetes.io/"}
	if err := run(ctx, options); err != nil {
		log.Fatal(err)
	}
}

// run starts each loop that is linked in, then the informers that they share.
func run(ctx context.Context, options controller.ContextOptions) error {
	factory, err := controller.NewContextFactory(ctx, options)
	if err != nil {
		return err
	}
	shared, err := factory.Build()
	if err != nil {
		return err
	}
	var loops sync.WaitGroup
	for name, construct := range controller.Known() {
		loop, err := construct(factory)
		if err != nil {
			return err
		}
		loops.Go(func() {
			if err := loop.Run(workersPerLoop, ctx); err != nil {
				log.Fatalf("%s: %v", name, err)
			}
		})
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	log.Print("ready")
	loops.Wait()
	return nil
}
