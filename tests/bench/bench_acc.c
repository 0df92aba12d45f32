#define _DEFAULT_SOURCE
#include <math.h>
#include <stdint.h>
#include "bench/bench.h"
static double rs(double x){return 1/sqrt(x);} static double sg(double x){return x<0?exp(x)/(1+exp(x)):1/(1+exp(-x));}
static struct{const char*n;int(*f)(mlxvk_array*,mlxvk_array,mlxvk_stream);double(*w)(double);}T[]={
#define R(n,w) {#n,mlxvk_##n,w}
R(exp,exp),R(expm1,expm1),R(log1p,log1p),R(sin,sin),R(cos,cos),R(tan,tan),R(sinh,sinh),R(cosh,cosh),R(tanh,tanh),R(erf,erf),R(sigmoid,sg),R(arcsinh,asinh),R(arctan,atan),R(arcsin,asin),R(log,log),R(rsqrt,rs)};
int main(int c,char**v){ open_device(NULL); enum{N=1<<20}; static float x[N],y[N];
 for(size_t k=0;k<sizeof T/sizeof*T;k++){ if(c>1&&strcmp(v[1],T[k].n))continue; double worst=0;float at=0; int bad=0;float badat=0;
  for(int pass=0;pass<3;pass++){ uint64_t s=88172645463325252ull+pass;
   for(int i=0;i<N;i++){ s^=s<<13;s^=s>>7;s^=s<<17; if(pass==0){uint32_t u=(uint32_t)(s>>20); memcpy(&x[i],&u,4);} else if(pass==1) x[i]=(float)((double)(s>>11)/9007199254740992.0*20-10); else x[i]=(float)((double)(s>>11)/9007199254740992.0*200-100);}
   if(pass==0){float sp[]={0,-0.f,INFINITY,-INFINITY,NAN,1,-1,1e-40f,88.7f,89,-88,-104,1e-30f,3.4e38f};memcpy(x,sp,sizeof sp);}
   int n=N; mlxvk_array a={0},r={0}; check(mlxvk_array_new_data_device(&a,x,&n,1,MLXVK_FLOAT32,device),"d"); check(T[k].f(&r,a,stream),"f"); check(mlxvk_array_read(r,y,sizeof y,stream),"read");
   for(int i=0;i<N;i++){ double w=T[k].w((double)x[i]); float g=y[i]; 
     if(isnan(w)||isnan(g)){ if(!(isnan(w)&&isnan(g))&&!bad++)badat=x[i]; continue;}
     if(fabs(w)<0x1p-126){ if(fabs((double)g)>0x1.01p-126&&!bad++)badat=x[i]; if(w==0&&signbit(w)!=signbit(g)&&!bad++)badat=x[i]; continue;}
     if(isinf((float)w)||isinf(g)){ if((float)w!=g&&fabs(w)<3.4028e38&&!bad++)badat=x[i]; if(isinf((float)w)&&!isinf(g)&&fabs(w)>3.40284e38&&!bad++)badat=x[i]; continue;}
     if(fabs((double)x[i])<0x1p-126)continue;
     int e; frexp(w,&e); double u=fabs((double)g-w)/ldexp(1,e-24); if(u>worst){worst=u;at=x[i];} }
   mlxvk_array_free(a);mlxvk_array_free(r);}
  printf("%s worst %.2f ulp at %.9g, bad %d (%g)\n",T[k].n,worst,at,bad,badat); fflush(stdout);} printf("%.1f\n", now()*0); close_device(); return 0;}
