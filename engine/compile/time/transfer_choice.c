#include "engine/compile/time/transfer_choice.h"

#include "engine/compile/time/dispatch_price.h"
#include "engine/compile/time/latent_price.h"

void transfer_choose(compile_options *o, const devices_row *with)
{
    compile_options priced = *o;
    priced.device = with ? with : o->device;
    o->transfers = (layer_transfers){.latents = latent_gathers(&priced), .slots = dispatch_by_slots(&priced)};
}
